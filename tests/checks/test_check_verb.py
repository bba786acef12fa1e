"""The verb: targets, exit codes, reports, recipes in every schema, and the init function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vitconv.checks.base.recipe import read_recipe
from vitconv.cli.main import run
from vitconv.errors import BadFile, UsageError

ROOT = Path(__file__).parents[2]
SMALL = [f"--set={pair}" for pair in ("depth=2", "dim=48", "heads=3", "image=16", "patch=4", "classes=10")]

# The configuration of the first public report, as it stands but for its size.
REPORT = """\
reversible: False
block_type: "encoder"
num_layers: 2
dim_model: 48
layer_norm_style: "pre"

multi_head_config:
  num_heads: 3
  residual_dropout: 0.1  # (1) tried without this, (2) swapping this for DropPath, (3) with regular dropout
  use_rotary_embeddings: False

  attention:
    name: "scaled_dot_product"
    dropout: 0.0
    causal: False

feedforward_config:
  name: "MLP"
  dropout: 0.0
  activation: "gelu"
  hidden_layer_multiplier: 4
"""
IMAGE = ["--set", "image=32", "--set", "classes=10"]
INIT = """
from torch import nn
from torch.nn.init import trunc_normal_

def init(model):
    def one(module):
        if isinstance(module, nn.Linear):
            trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.zeros_(module.bias)
            nn.init.ones_(module.weight)
    model.apply(one)
"""


def answer(capsys: Any, *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["check", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def levels(found: dict[str, Any]) -> dict[str, str]:
    return {c["check"]: c["level"] for c in found["checks"]}


def test_a_size_is_ready(capsys: Any) -> None:
    code, found = answer(capsys, "vit_tiny", *SMALL)
    assert code == 0
    assert found["verdict"]["word"] == "ready to train"
    assert len(found["checks"]) >= 10


def test_a_post_norm_stack_of_24_is_not(capsys: Any) -> None:
    code, found = answer(capsys, "vit_tiny", *SMALL, "--set=depth=24", "--set=norm=post", "--init", "timm-moco")
    assert code == 1
    assert levels(found)["gradient-profile"] == "error"


def test_a_checkpoint_without_facts_is_undecided(capsys: Any, tmp_path: Path) -> None:
    import shutil

    path = tmp_path / "vit_digits.safetensors"
    shutil.copy(ROOT / "fixtures/digits/vit_digits.safetensors", path)
    code, found = answer(capsys, str(path))
    assert code == 3
    assert "heads" in next(c["skipped"] for c in found["checks"] if c["check"] == "signals")
    assert levels(found)["init-audit"] == "info"


def test_a_trained_checkpoint_is_ready(capsys: Any) -> None:
    code, found = answer(
        capsys,
        str(ROOT / "fixtures/digits/vit_digits.safetensors"),
        "--data",
        str(ROOT / "fixtures/digits/held_out.npz"),
    )
    assert code == 0, found["checks"]


@pytest.mark.parametrize(
    ("release", "code"), [(None, 1), ("0.0.9", 1), ("0.0.11", 0)], ids=["not-stated", "0.0.9", "0.0.11"]
)
def test_the_first_report_runs_as_it_stands(release: str | None, code: int, capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "vit_b.yaml"
    path.write_text(REPORT)
    told = [] if release is None else ["--set", f"release={release}"]
    got, found = answer(capsys, str(path), *IMAGE, *told)
    assert got == code, found["checks"]
    assert levels(found)["facts"] == ("error" if code else "info")
    assert levels(found)["init-audit"] == "ok"


@pytest.mark.parametrize(("release", "missing"), [("0.0.9", 6), ("0.0.22", 4)])
def test_the_init_function_of_the_first_report(release: str, missing: int, capsys: Any, tmp_path: Path) -> None:
    path, code = tmp_path / "vit_b.yaml", tmp_path / "their_init.py"
    path.write_text(REPORT if release == "0.0.9" else REPORT.replace("layer_norm_style", "residual_norm_style"))
    code.write_text(INIT)
    got, found = answer(capsys, str(path), *IMAGE, "--set", f"release={release}", "--init-fn", f"python:{code}:init")
    assert got == 1
    rows = [r for r in found["sections"][0]["rows"] if r["status"] == "fail"]
    assert sum(r["count"] for r in rows) == missing
    assert any("in_proj_weight" in r["parameter"] for r in rows) == (release == "0.0.9")


def test_a_recipe_in_full(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "model: vit_tiny\nset: {depth: 2, dim: 48, heads: 3, image: 16, patch: 4, classes: 10, norm: deepnorm}\n"
        "init: timm-moco\nprecision: amp-bf16\nchecks: [deepnorm-bound, fp16-headroom]\n"
        "thresholds: {deepnorm-bound: {high: 100}}\ntraining: {lr: 1e-4, batch: 2}\n"
    )
    code, found = answer(capsys, str(path))
    assert code == 0
    assert levels(found)["deepnorm-bound"] in ("ok", "warn")
    assert "range" in next(c["skipped"] for c in found["checks"] if c["check"] == "fp16-headroom")
    assert read_recipe(path).wanted.plan.lr == 1e-4


def test_a_recipe_with_the_first_reports_training_and_variants(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "model: vit_tiny\ntraining: {like: first-report, steps: 60}\n"
        "vary: {norm: [pre, post], eps: [1e-6, 1e-5], kv_normalised: [true, false]}\n"
    )
    recipe = read_recipe(path)
    assert len(recipe.vary) == 8
    assert recipe.vary[0] == {"norm": "pre", "eps": "1e-6", "kv_normalised": "true"}
    plan = recipe.wanted.plan
    assert (plan.mixup, plan.cutmix, plan.smoothing, plan.betas, plan.steps) == (0.8, 1.0, 0.1, (0.9, 0.95), 60)


def test_variants_are_trained_in_one_call(capsys: Any, monkeypatch: Any) -> None:
    from vitconv.checks.base.training import Run
    from vitconv.checks.base.variants import Tried

    monkeypatch.setattr(
        "vitconv.checks.training_probe.trial", lambda _, axes: Tried(axes, Run((2.3, 1.0), (), 2.3026), None)
    )
    code, found = answer(
        capsys, "vit_tiny", *SMALL, "--vary", "release=0.0.9,0.0.11", "--vary=precision=fp32,amp-fp16",
        "--training", "first-report",
    )  # fmt: skip
    assert code == 0
    assert [c["check"] for c in found["checks"]] == ["training-probe"]
    assert len(found["checks"][0]["findings"]) == 5
    assert "mixup 0.8" in found["checks"][0]["findings"][0]["text"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("modle: vit_tiny", "model"),
        ("model: vit_tiny\ntraining: second-report", "first-report"),
        ("model: vit_tiny\nvary: {nrom: [pre]}", "axis to vary"),
        ("model: vit_tiny\ntimm: x", "expected one of"),
        ("model: vit_tiny\ntraining: {learning: 1}", "key of training"),
        ("just text", "a mapping"),
    ],
)
def test_a_recipe_that_is_none(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_recipe(path)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(f'*{a}' for _ in range(10))}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "found nothing; expected a recipe"),
        ("model: vit_tiny\nmodel: vit_base", "the key model stands twice, in lines 1 and 2"),
        ("model: vit_tiny\nset: {depth: 1, depth: 2}", "the key depth stands twice"),
        (f"{BOMB}model: vit_tiny\nset: {{depth: *g}}", "more than 100000 values"),
        ("model: &m [*m]", "holds itself by an alias"),
        ("model: vit_tiny\nset: [depth]", "set: found list; expected names with a value each"),
        ("model: vit_tiny\nset: {depth: {a: 1}}", "set: depth: found dict; expected a value"),
        ("model: vit_tiny\nset: {depth: }", "set: depth: found NoneType"),
        ("model: vit_tiny\nthresholds: [1]", "thresholds: found list; expected names with a value each"),
        ("model: vit_tiny\nthresholds: {signals: 5}", "thresholds: signals: found 5; expected names with a value each"),
        ("model: vit_tiny\nthresholds: {signals: {rms: many}}", "signals: rms: found 'many'; expected a number"),
        ("model: vit_tiny\nthresholds: {signals: {rms: .nan}}", "signals: rms: found nan; expected a number"),
        ("model: vit_tiny\nthresholds: {signals: {rms: true}}", "signals: rms: found True; expected a number"),
        ("model: vit_tiny\ntraining: [1]", "training: found list"),
        ("model: vit_tiny\ntraining: {lr: .nan}", "lr: found 'nan'; expected a number above 0"),
        ("model: vit_tiny\ntraining: {lr: -1}", "lr: found '-1'"),
        ("model: vit_tiny\ntraining: {lr: fast}", "lr: found 'fast'"),
        ("model: vit_tiny\ntraining: {steps: -3}", "steps: found '-3'; expected a whole number of at least 1"),
        ("model: vit_tiny\ntraining: {batch: 1.5}", "batch: found '1.5'"),
        ("model: vit_tiny\ntraining: {betas: [0.9]}", "betas: found .* expected two numbers from 0 to 1"),
        ("model: vit_tiny\ntraining: {betas: [2, 3]}", "betas: found"),
        ("model: vit_tiny\ntraining: {smoothing: 1}", "smoothing: found '1'"),
        ("model: vit_tiny\nprecision: fp8", "precision: found 'fp8'; expected one of fp32, amp-fp16, amp-bf16"),
        ("model: vit_tiny\nseed: minus", "seed: found 'minus'; expected a whole number"),
        ("model: vit_tiny\nseed: -4", "seed: found -4"),
        ("model: vit_tiny\nseed: 99999999999999999999999", "seed: found 9999"),
        ("model: vit_tiny\nchecks: []", "checks: found list; expected names"),
        ("model: vit_tiny\nchecks: {a: 1}", "checks: found dict; expected names"),
        ("model: vit_tiny\nvary: [norm]", "vary: found list; expected names with a value each"),
        ("model: vit_tiny\ninit: [timm]", "init: found list; expected a name"),
        ("timm: 5", "timm: found 5; expected names with a value each"),
    ],
)
def test_a_recipe_whose_values_are_of_another_kind(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises((UsageError, BadFile), match=says):
        read_recipe(path)


def test_thresholds_of_a_check_that_there_is_not(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: vit_tiny\nset: {depth: 1}\nchecks: signals\nthresholds: {signal: {rms: 1}}")
    code, found = answer(capsys, str(path))
    assert code == 2
    assert "unknown check 'signal'" in found["verdict"]["sentence"]


@pytest.mark.parametrize("words", [("--lr", "nan"), ("--lr", "-1"), ("--precision", "fp8"), ("--seed", str(2**64))])
def test_options_that_are_no_training(words: tuple[str, str], capsys: Any) -> None:
    assert answer(capsys, "vit_tiny", *SMALL, "--only", "first-step", *words)[0] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "depth=99999999999"), "the depth is 99999999999, expected 1 to 10000"),
        (("--set", "dim=99999999999"), "the width is 99999999999"),
        (("--set", "image=99999999999"), "the number of patches is"),
        (("--set", "image=8"), "the number of patches is 0, expected 1 to 16777216: the image is smaller than a patch"),
        (("--set", "mlp_ratio=0"), "the width of the MLP, by mlp_ratio, is 0"),
        (("--set", "mlp_ratio=-4"), "the width of the MLP, by mlp_ratio, is -768"),
        (("--set", "depth=10000", "--set", "dim=196608"), "the machine has"),
    ],
)
def test_sizes_that_no_network_has(words: tuple[str, ...], says: str, capsys: Any) -> None:
    code, found = answer(capsys, "vit_tiny", *words)
    assert code == 3
    assert says in found["verdict"]["sentence"]


@pytest.mark.parametrize(
    "axis", ["norm=sideways", "depth=0", "depth=x", "lr=nan", "eps=nan", "eps=0", "warmup=-1", "precision=fp8",
             "release=9", "kv_normalised=maybe", "init=nosuch"]
)  # fmt: skip
def test_values_that_no_variant_has(axis: str, capsys: Any) -> None:
    code, found = answer(capsys, "vit_tiny", *SMALL, "--vary", axis)
    assert code == 2
    assert axis.partition("=")[2] in found["verdict"]["sentence"]


def test_variants_of_a_recipe_are_trained_or_said_to_be_left_out(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "recipe.yaml"
    network = "model: vit_tiny\nset: {depth: 1, dim: 48, image: 16, patch: 4}\ntraining: {steps: 2, warmup: 1}\n"
    path.write_text(f"{network}vary: {{norm: [pre]}}")
    assert [c["check"] for c in answer(capsys, str(path))[1]["checks"]] == ["training-probe"]
    path.write_text(f"{network}vary: {{norm: [pre]}}\nchecks: [signals]")
    assert answer(capsys, str(path))[0] == 2


def test_names_that_are_empty(capsys: Any) -> None:
    assert answer(capsys, "")[0] == 2
    assert answer(capsys, "vit_tiny", "--data", "")[0] == 2


def test_a_training_that_ends_in_its_warm_up_is_undecided(capsys: Any) -> None:
    code, found = answer(capsys, "vit_tiny", *SMALL, "--only", "training-probe", "--steps", "5")
    assert code == 3
    assert "ends before the peak learning rate" in found["checks"][0]["skipped"]


def test_the_html_report_has_the_charts(tmp_path: Path, capsys: Any) -> None:
    page = tmp_path / "out.html"
    assert run(["check", "vit_tiny", *SMALL, "--report", str(page)]) == 0
    capsys.readouterr()
    assert page.read_text().count('<svg class="chart"') >= 5


def test_an_unknown_check_is_wrong_usage(capsys: Any) -> None:
    assert run(["check", "vit_tiny", "--only", "sginals"]) == 2
    assert "signals" in capsys.readouterr().err


def test_one_reason_that_keeps_many_checks_from_running_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    path, bare = tmp_path / "m.safetensors", tmp_path / "bare.safetensors"
    size = [x for text in ("depth=2", "dim=48", "heads=3", "image=32") for x in ("--set", text)]
    assert run(["init", "vit_tiny", str(path), "--scheme", "timm", "--to", "timm", *size]) == 0
    # Without what the file and the configuration beside it say of the network.
    (tmp_path / "config.json").unlink(missing_ok=True)
    save_file(load_file(path), bare)
    capsys.readouterr()
    assert run(["check", str(bare)]) == 3
    said = capsys.readouterr().out
    assert said.count("the function needs") == 1
    assert "and 11 more" in said
    assert "12 undecided" in said
