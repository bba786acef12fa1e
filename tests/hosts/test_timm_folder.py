"""timm's host builds from a folder with its config.json, and looks nothing up on a hub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from vitconv.errors import UsageError
from vitconv.hosts.base.host import Spec
from vitconv.registry import HOSTS, load

timm = pytest.importorskip("timm")
DIGITS = Path(__file__).parents[2] / "fixtures" / "digits"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the trained digits, without its weights: the configuration alone builds the network."""
    shutil.copy(DIGITS / "config.json", tmp_path)
    return tmp_path


@pytest.mark.parametrize("prefix", ["", "local-dir:"])
def test_a_folder_builds_the_network_of_its_configuration(prefix: str, folder: Path) -> None:
    built = load(HOSTS, "timm").build(Spec(f"{prefix}{folder}"))
    told = json.loads((folder / "config.json").read_text())
    assert built.module.embed_dim == told["model_args"]["embed_dim"]
    assert len(built.module.blocks) == told["model_args"]["depth"]
    assert built.inputs.shape == (1, 8, 8)
    assert built.facts.norm_eps == 1e-6 and built.facts.activation == "gelu"


def test_options_win_over_the_configuration(folder: Path) -> None:
    built = load(HOSTS, "timm").build(Spec(str(folder), {"depth": 1}))
    assert len(built.module.blocks) == 1


def test_the_weights_beside_it_are_not_loaded_unasked(folder: Path, tmp_path: Path) -> None:
    """A network is made with timm's own initialisation; weights come with @CHECKPOINT."""
    import torch

    torch.manual_seed(0)
    bare = load(HOSTS, "timm").build(Spec(str(folder)))
    torch.manual_seed(0)
    full = load(HOSTS, "timm").build(Spec(str(DIGITS)))
    one, two = bare.module.state_dict(), full.module.state_dict()
    assert all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("name", ["hf-hub:timm/vit_tiny_patch16_224", "no_such_model"])
def test_nothing_is_looked_up_elsewhere(name: str) -> None:
    with pytest.raises(UsageError, match="timm has no model"):
        load(HOSTS, "timm").build(Spec(name))


def test_a_folder_without_a_configuration_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="timm has no model"):
        load(HOSTS, "timm").build(Spec(str(tmp_path)))


def test_a_folder_verifies_against_its_own_checkpoint() -> None:
    from vitconv.parity.verify import verify

    result = verify(
        f"timm:{DIGITS}@{DIGITS / 'vit_digits.safetensors'}",
        "timm:vit_tiny_patch16_224",
        set_b={
            "img_size": 8, "patch_size": 2, "embed_dim": 64, "depth": 4, "num_heads": 4, "num_classes": 10,
            "in_chans": 1,
        },
        precisions=["fp64"],
        inputs=["coloured"],
    )  # fmt: skip
    assert result.verdict == "same", result.reason
