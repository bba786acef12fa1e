"""`vitconv verify` end to end: exit codes, the forms of its report, and that each tells what was found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from vitconv.cli.main import run
from vitconv.layout.semantics import Semantics
from vitconv.parity.probe import probe_weights

ROOT = Path(__file__).parents[2]
FACTS = {
    "heads": 4, "norm_placement": "pre", "norm_kind": "layernorm", "norm_eps": 1e-6, "final_norm_eps": 1e-6,
    "activation": "gelu", "attention": "softmax", "kv_normalised": True, "pooling": "token", "position": "learned",
    "grid": (2, 2), "image_size": (8, 8),
}  # fmt: skip
# One precision, one image set: a few seconds on one core.
QUICK = ["--precision", "fp64", "--inputs", "coloured"]
D, M, CLASSES = 16, 32, 3


def shapes() -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {"embed.cls": (D,), "embed.pos": (4, D), "embed.pos_cls": (D,)}
    linears = {"embed.patch": (D, 3, 4, 4), "head": (CLASSES, D)}
    norms = ["norm"]
    for i in range(2):
        linears |= {f"blocks.{i}.attn.{x}": (D, D) for x in ("q", "k", "v", "out")}
        linears |= {f"blocks.{i}.mlp.up": (M, D), f"blocks.{i}.mlp.down": (D, M)}
        norms += [f"blocks.{i}.norm1", f"blocks.{i}.norm2"]
    for name, shape in {**linears, **dict.fromkeys(norms, (D,))}.items():
        out |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return out


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write a canonical checkpoint with facts in its metadata; a fact that is None is left out."""
    from safetensors.torch import save_file

    def to(name: str, change: Callable[[dict[str, torch.Tensor]], None] | None = None, **facts: object) -> str:
        tensors = {n: t.float().contiguous() for n, t in probe_weights(shapes(), 3).items()}
        if change is not None:
            change(tensors)
        known = {k: v for k, v in {**FACTS, **facts}.items() if v is not None}
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors, path, {"vitconv.facts": Semantics(**known).to_json()})  # type: ignore[arg-type]
        return str(path)

    return to


def dead(tensors: dict[str, torch.Tensor]) -> None:
    tensors["head.weight"].zero_()
    tensors["head.bias"].zero_()


RANDOM = """
import torch
from torch import nn
import torch.nn.functional as F
from vitconv.vit.config import config_from_shapes
from vitconv.vit.model import ViT
from vitconv.layout.semantics import Semantics

SHAPES, FACTS = {shapes!r}, {facts!r}

class Random(ViT):
    def forward(self, images):
        return super().forward(F.dropout(images, 0.5, training=True))

def network():
    return Random(config_from_shapes(SHAPES, Semantics(**FACTS)))
"""


def test_the_same_is_0(write, capsys):
    assert run(["verify", write("a"), write("b"), *QUICK]) == 0
    out = capsys.readouterr().out
    assert "same: the same function in float64" in out
    assert "no other precision was looked at" in out


def test_a_difference_is_1_and_is_named_with_its_figures(write, capsys):
    assert run(["verify", write("a"), write("b", norm_eps=1e-5), *QUICK]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("differs: B is A with this: eps of the norms in the blocks is 1e-5.")
    assert re.search(r"it takes the largest gap from \S+e-0\d to (0|\S+e-1\d)$", out[1])
    assert any(re.match(r"\s+norm_eps\s+1e-06\s+1e-05$", line) for line in out)
    assert any("parts first at blocks.0.attn" in line for line in out)


LOUD = """
from vitconv.layout.semantics import Semantics
from vitconv.vit.config import config_from_shapes
from vitconv.vit.model import ViT

class Loud(ViT):
    def forward(self, images):
        print("what the user prints")
        return super().forward(images)

def network():
    return Loud(config_from_shapes({shapes!r}, Semantics(**{facts!r})))
"""


def test_what_a_network_prints_is_beside_the_result(write, tmp_path, capsys):
    (tmp_path / "loud.py").write_text(LOUD.format(shapes=shapes(), facts=FACTS))
    code = run(["verify", write("a"), f"python:{tmp_path}/loud.py:network", *QUICK, "--skip", "why", "--json"])
    told = capsys.readouterr()
    assert code == 0, told
    assert "what the user prints" in told.err
    assert json.loads(told.out)["verdict"]


def test_other_weights_are_1(write, capsys):
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["blocks.1.attn.k.bias"][0] += 1.0  # no run can see it: it cancels in the softmax

    assert run(["verify", write("a"), write("b", change), *QUICK]) == 1
    assert "blocks.1.attn.k.bias" in capsys.readouterr().out


def test_a_weight_that_is_nan_is_not_called_random(write, capsys):
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["blocks.0.attn.q.weight"][0, 0] = float("nan")

    assert run(["verify", write("a", change), write("b"), *QUICK]) == 3
    out = capsys.readouterr().out
    assert "NaN or Inf, first at blocks.0.attn" in out
    assert "dropout" not in out


USAGE = {
    "no such file": ["{a}", "nowhere.safetensors"],
    "no such host": ["{a}", "tim:vit_tiny"],
    "no such precision": ["{a}", "{a}", "--precision", "fp8"],
    "no such stage": ["{a}", "{a}", "--skip", "luck"],
    "no such images": ["{a}", "{a}", "--inputs", "cats"],
    "no such profile": ["{a}", "{a}", "--profile", "lax"],
    "one side": ["{a}"],
    "no such form": ["{a}", "{a}", "--report", "out.doc"],
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage_is_2(name, write, capsys):
    a = write("a")
    assert run(["verify", *(word.format(a=a) for word in USAGE[name])]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert told.err


def test_missing_facts_are_3_and_say_what_completes_them(write, capsys):
    a = write("a", heads=None)
    assert run(["verify", a, a, *QUICK]) == 3
    assert "--set-a heads=" in capsys.readouterr().err
    assert run(["verify", a, a, *QUICK, "--set-a", "heads=4", "--set-b", "heads=4"]) == 0


def test_a_dead_network_is_3(write, capsys):
    assert run(["verify", write("a", dead), write("b", dead), *QUICK]) == 3
    assert "vacuous" in capsys.readouterr().out


def test_a_random_baseline_is_3_and_a_random_candidate_1(write, capsys, tmp_path, monkeypatch):
    text = RANDOM.format(shapes=shapes(), facts={**FACTS})
    (tmp_path / "random_vit.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    a, network = write("a"), "python:random_vit:network"
    assert run(["verify", network, a, *QUICK]) == 3
    assert "random numbers are drawn by" in capsys.readouterr().out
    assert run(["verify", a, network, *QUICK]) == 1
    assert "random" in capsys.readouterr().out


@pytest.mark.parametrize("stage", ["accounting", "sanity", "function"])
def test_without_a_needed_stage_nothing_is_proved(stage, write, capsys):
    a = write("a")
    assert run(["verify", a, a, *QUICK, "--skip", stage]) == 3
    out = capsys.readouterr().out
    assert f"{stage} did not run" in out
    assert "skipped: asked to" in out


# --- forms ---


@pytest.fixture
def eps(write, tmp_path, capsys) -> Callable[[str], str]:
    """Verify a pair with another eps at float64 and fp32, and return the report in a form."""

    def form(suffix: str) -> str:
        path = tmp_path / f"out{suffix}"
        words = ["verify", write("a"), write("b", norm_eps=1e-5), "--precision", "fp32", "--inputs", "coloured"]
        assert run([*words, "--report", str(path)]) == 1
        return path.read_text(encoding="utf-8")

    return form


def documented() -> dict[str, set[str]]:
    """Read {name: types} from the page that documents the JSON."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "docs" / "verify-schema.md").read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.replace(r"\|", "").strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 3:
            for name in cells[0].split(","):
                found[name.strip().strip("`")] = set(re.split(r",\s*|\s+or\s+", cells[1]))
    assert len(found) > 50
    return found


def type_of(value: object) -> set[str]:
    if isinstance(value, bool):
        return {"truth"}
    if isinstance(value, (int, float)):
        return {"number", "figure"}
    if isinstance(value, str):
        return {"text", "figure"} if value in ("NaN", "Infinity", "-Infinity") else {"text"}
    return {"null"} if value is None else {"list"} if isinstance(value, list) else {"object"}


def undocumented(value: object, known: dict[str, set[str]], name: str = "") -> list[str]:
    """Return names of the document that the page does not tell, or tells of another type."""
    types = known.get(name)
    if types is not None and types & {*type_of(value), "anything"} and not isinstance(value, (dict, list)):
        return []
    if types is not None and "anything" in types:
        return []
    if isinstance(value, dict):
        out = []
        for key, item in value.items():
            named = f"{name}.{key}" if name else key
            starred = f"{name}.*"
            spelled = any(k == named or k.startswith((f"{named}.", f"{named}[")) for k in known)
            out += undocumented(item, known, named if spelled else starred)
        return out
    if isinstance(value, list):
        return [x for item in value for x in undocumented(item, known, f"{name}[]")]
    return [f"{name}: {type(value).__name__}"]


def test_the_json_is_as_documented(eps):
    document = json.loads(eps(".json"))
    known = documented()
    assert undocumented(document, known) == []
    assert document["schema"] == "vitconv.verify" and document["schema_version"] == 1
    assert {"verdict", "facts", "stages", "where", "cause"} <= document.keys()
    assert document["verdict"]["word"] == "differs" and document["exit_code"] == 1
    assert document["facts"]["norm_eps"] == {"A": 1e-6, "B": 1e-5}
    assert document["where"]["forward"] == "blocks.0.attn"
    assert document["cause"]["found"] == ["eps-blocks-1e-5"]
    assert document["cause"]["after"] < 1e-10 < document["cause"]["before"]
    assert [s["key"] for s in document["stages"]] == [
        "accounting", "sanity", "function", "numerics-fp32", "where", "why"
    ]  # fmt: skip
    assert all(len(s["measured"]) > 50 for s in document["stages"] if s["key"] in ("function", "numerics-fp32"))
    # Of what is documented, all but what depends on the case is there.
    flat = json.dumps(document)
    lacking = {k.rpartition(".")[2].strip("[]*") for k in known} - set(re.findall(r'"(\w+)":', flat)) - {"", "A", "B"}
    assert lacking == set()


def test_the_check_of_the_schema_sees_a_new_name_and_another_type():
    known = documented()
    assert undocumented({"verdict": {"word": "same"}}, known) == []
    assert undocumented({"verdict": {"mood": "same"}}, known) != []
    assert undocumented({"verdict": {"word": 3}}, known) != []
    assert undocumented({"stages": [{"runs": "many"}]}, known) != []


def test_junit_has_a_suite_per_stage_and_a_case_per_group_of_taps(eps):
    root = ElementTree.fromstring(eps(".xml"))
    suites = {s.get("name"): s for s in root}
    assert list(suites) == ["verdict", "accounting", "sanity", "function", "numerics-fp32", "where", "why"]
    cases = {c.get("name"): c for c in suites["function"]}
    assert {"embed, forward", "blocks.0, forward", "blocks.1, backward", "head, parameters"} <= cases.keys()
    failure = cases["blocks.0, forward"].find("failure")
    assert re.search(r"relative gap in float64: blocks\.0\S* \S+e-\d+ of 1e-10 allowed", failure.get("message"))
    assert "eps of the norms in the blocks is 1e-5" in failure.get("message")
    assert "max abs" in failure.text
    assert cases["embed, forward"].find("failure") is None
    assert int(root.get("failures")) > 5


def test_junit_shows_what_was_skipped(write, tmp_path):
    a, path = write("a"), tmp_path / "out.xml"
    assert run(["verify", a, a, *QUICK, "--report", str(path)]) == 0
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    skips = {s.get("name"): s.find("testcase/skipped") for s in root}
    assert skips["where"] is not None and skips["why"] is not None
    assert root.get("skipped") == "2" and root.get("failures") == "0"


def test_the_page_stands_alone_and_tells_all(eps, tmp_path):
    text = eps(".html")
    assert "eps of the norms in the blocks is 1e-5" in text
    assert text.count("<svg") == 5  # where; forward and backward in float64 and in fp32
    assert "times A&#39;s own error" in text or "times A's own error" in text
    assert 'class="sortable"' in text and "script-src 'sha256-" in text
    assert not re.search(r"""(src|href)=["'](?!#)""", text)
    command = f"vitconv verify {tmp_path / 'a.safetensors'} {tmp_path / 'b.safetensors'} --precision fp32"
    assert command in text


def test_markdown_has_the_verdict_and_the_cause(eps):
    text = eps(".md")
    assert text.splitlines()[2].startswith("**differs**: B is A with this")
    assert "## Why: eps of the norms in the blocks is 1e-5" in text


def test_verbose_prints_every_parameter(write, capsys):
    a = write("a")
    run(["verify", a, a, *QUICK])
    assert "blocks.1.mlp.down.weight" not in capsys.readouterr().out
    run(["verify", a, a, *QUICK, "-v"])
    assert "blocks.1.mlp.down.weight" in capsys.readouterr().out


def test_runs_are_compared_and_judged_without_networks(write, tmp_path, capsys):
    a, b = write("a"), write("b", norm_eps=1e-5)
    folder = tmp_path / "run"
    assert run(["verify", a, b, *QUICK, "--save", str(folder)]) == 1
    assert run(["verify", "judge", str(folder)]) == 1
    assert run(["verify", str(folder), str(folder)]) == 2
    assert run(["verify", a, b, *QUICK, "--save", str(tmp_path / "again")]) == 1
    assert run(["verify", str(folder), str(tmp_path / "again")]) == 0
    assert run(["verify", "judge", str(tmp_path)]) in (2, 3)
    assert "Traceback" not in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_told_before_the_work(tmp_path, capsys, monkeypatch):
    import os

    from vitconv.cli.main import run

    monkeypatch.setattr(os, "access", lambda *_args, **_more: False)
    assert run(["check", "vit_tiny", "--report", str(tmp_path / "r.html")]) == 2
    said = capsys.readouterr()
    assert "cannot be written to" in said.err
    assert not said.out
