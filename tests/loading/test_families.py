"""A folder of every family of transformers opens in timm and in transformers with no further word, and by load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families_kit import CASES, Built, randomised, saved
from safetensors.torch import load_file

import vitconv
from vitconv.cli.main import run
from vitconv.errors import Refused
from vitconv.hosts.base.host import Spec
from vitconv.registry import HOSTS, load

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
# Those that are another function in timm: a pooler or a token's place that its classes lack, a bias that turns.
# timm has no positions for registers apart from the others: the class row is folded into its token, on request.
FOLDED = "dinov2 registers"
FOLD = "fold-cls-position"
NOT_IN_TIMM = {"vit pooler", "deit", "beit masked"}
_STAGES: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 2,
    "num_labels": 5,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
STAGES = {"swin": ("swin", _STAGES), "swinv2": ("swinv2", _STAGES)}
EVERY = [*CASES, *STAGES]

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def made(case: str, folder: Path) -> Built:
    """Save a network of transformers with its image processor."""
    if case in CASES:
        found = saved(case, folder)
    else:
        model, options = STAGES[case]
        found = load(HOSTS, "transformers").build(Spec(model, dict(options)))
        net: Any = randomised(found.module)
        net.save_pretrained(folder)
    from transformers import ViTImageProcessor

    size = dict(zip(("height", "width"), found.inputs.shape[1:], strict=True))
    ViTImageProcessor(size=size, image_mean=MEAN, image_std=STD, resample=2).save_pretrained(folder)
    return found


def answers(found: Built, x: torch.Tensor, module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        want = found(x)
        got = module.eval()(x) if want.ndim == 2 else module.eval().forward_features(x)
    return want, getattr(got, "logits", got)


@pytest.mark.parametrize("case", [c for c in EVERY if c not in NOT_IN_TIMM and "eager" not in c])
def test_timm_and_transformers_open_the_folder(case: str, tmp_path: Path) -> None:
    import timm
    from transformers import AutoImageProcessor, AutoModel

    found = made(case, tmp_path / "hf")
    more = ["--edit", FOLD] if case == FOLDED else []
    assert run(["convert", str(tmp_path / "hf"), str(tmp_path / "out"), *more]) == 0
    net = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    x = torch.randn(2, *found.inputs.shape, generator=torch.Generator().manual_seed(2))
    want, got = answers(found, x, net)
    assert got.shape == want.shape
    # Below its smallest eps timm computes with that: seen where a norm's input is small.
    assert torch.allclose(got, want, rtol=0, atol=1e-4 * float(want.abs().max()))
    cfg = net.pretrained_cfg
    assert [list(cfg["mean"]), list(cfg["std"]), cfg["interpolation"]] == [MEAN, STD, "bilinear"]
    wrapped, info = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert type(wrapped).__name__ == "TimmWrapperModel"
    assert list(AutoImageProcessor.from_pretrained(tmp_path / "out").data_config["std"]) == STD


@pytest.mark.parametrize("case", ["vit pooler", "deit", "beit masked"])
def test_what_timm_computes_otherwise_is_not_made_to_open(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(case, tmp_path / "hf")
    code = run(["convert", str(tmp_path / "hf"), str(tmp_path / "out")])
    said = capsys.readouterr()
    assert code == 3 or "left out: timm's distilled model has two heads" in said.out
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("case", ["dinov2", "mae"])
def test_what_only_training_uses_is_kept_in_the_folder_and_comes_back(case: str, tmp_path: Path) -> None:
    made(case, tmp_path / "hf")
    out = tmp_path / "out"
    assert run(["convert", str(tmp_path / "hf"), str(out)]) == 0
    kept = load_file(out / "training.safetensors")
    assert kept.keys() and all(name.startswith(("embed.mask", "decoder.")) for name in kept)
    to = "hf-dinov2" if case == "dinov2" else "hf-mae"
    back = [
        "convert", str(out / "model.safetensors"), str(tmp_path / "back"), "--to", to,
        "--restore", str(out / "training.safetensors"),
    ]  # fmt: skip
    assert run(back) == 0
    assert run(["diff", str(tmp_path / "hf"), str(tmp_path / "back")]) == 0
    # Asked for by name it is refused as ever.
    assert run(["convert", str(tmp_path / "hf"), str(tmp_path / "no"), "--to", "timm"]) == 3
    assert not (tmp_path / "no").exists()


def test_a_part_of_the_function_is_never_set_aside(tmp_path: Path) -> None:
    made("vit pooler", tmp_path / "hf")
    assert run(["convert", str(tmp_path / "hf"), str(tmp_path / "out")]) == 3
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in EVERY if "eager" not in c])
@pytest.mark.parametrize("host", ["transformers", "timm", "reference", "auto"])
def test_load_gives_a_module_that_computes_the_same(case: str, host: str, tmp_path: Path) -> None:
    found = made(case, tmp_path)
    if host == "timm" and case in {*NOT_IN_TIMM, FOLDED}:
        with pytest.raises(Refused, match=FOLD if case == FOLDED else None):
            vitconv.load(tmp_path, host)
        return
    module = vitconv.load(tmp_path, host)
    name = "transformers" if host == "auto" else host
    live = load(HOSTS, name).describe(module.double(), Spec())
    x = torch.randn(2, *found.inputs.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    twin = load(HOSTS, "transformers").describe(found.module.double(), Spec())
    with torch.no_grad():
        want, got = twin(x), live(x)
    assert got.shape == want.shape
    # The eps of every norm is the file's, also where timm's configuration could not say it.
    assert (got - want).abs().max() < 1e-10 * want.abs().max()


def test_load_folds_the_class_row_when_told(tmp_path: Path) -> None:
    """The sum is rounded once, to the dtype of the weights."""
    found = made(FOLDED, tmp_path)
    live = load(HOSTS, "timm").describe(vitconv.load(tmp_path, "timm", edits=[FOLD]).double(), Spec())
    twin = load(HOSTS, "transformers").describe(found.module.double(), Spec())
    x = torch.randn(2, *found.inputs.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        want, got = twin(x), live(x)
    assert 0 < (got - want).abs().max() < 1e-6 * want.abs().max()


def test_auto_takes_timm_where_no_library_owns_the_layout() -> None:
    golden = Path(__file__).parents[2] / "fixtures" / "golden"
    path = next(golden.glob("dinov2/*.pth"))
    module = vitconv.load(path, "auto", facts={"heads": 2, "grid": (4, 4)}, drop=["embed.mask"])
    assert type(module).__module__.startswith("timm.")


def test_a_module_that_computes_otherwise_is_refused(tmp_path: Path) -> None:
    made("vit", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "quick_gelu"}))
    with pytest.raises(Refused, match="activation: quick_gelu here, but torchvision VisionTransformer computes gelu"):
        vitconv.load(tmp_path, "torchvision")
    factory = tmp_path / "mine.py"
    factory.write_text(
        "import timm\ndef net():\n    return timm.create_model('vit_tiny_patch16_224', img_size=16, patch_size=4,"
        " embed_dim=32, depth=2, num_heads=4, num_classes=2, mlp_ratio=1.5)\n"
    )
    with pytest.raises(Refused, match="activation is quick_gelu here and gelu there"):
        vitconv.load(tmp_path, f"python:{factory}:net")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert type(vitconv.load(tmp_path, f"python:{factory}:net")).__name__ == "VisionTransformer"
    factory.write_text(factory.read_text().replace("depth=2", "depth=1"))
    with pytest.raises(Refused, match=rf"the module that python:{factory}:net gives is not the network of the weights"):
        vitconv.load(tmp_path, f"python:{factory}:net")
