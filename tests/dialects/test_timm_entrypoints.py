"""Every VisionTransformer that timm can name is recognised exactly, or refused with the reason that is its own."""

import pytest

from vitconv.errors import NotRecognised, Refused
from vitconv.layout.detect import detect
from vitconv.registry import DIALECTS, load_all

# What stands in an entrypoint's state dict that no plain layout has, and the reason told for it.
REASONS = {
    "patch_embed.norm.": "patch embedding with a norm",
    ".in_proj.": "ParallelScalingBlock",
    ".lambda_q1": "differential attention",
}
ELSEWHERE = (
    "beit_base_patch16_224",
    "eva02_tiny_patch14_224",
    "vit_relpos_small_patch16_224",
    "vit_tiny_r_s16_p8_224",
    "samvit_base_patch16",
    "naflexvit_base_patch16_gap",
    "swin_tiny_patch4_window7_224",
    "cait_xxs24_224",
    "volo_d1_224",
    "hiera_tiny_224",
)


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    timm = pytest.importorskip("timm")
    import torch

    with torch.device("meta"):
        return {k: tuple(v.shape) for k, v in timm.create_model(name).state_dict().items()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_all_of_them() -> None:
    timm = pytest.importorskip("timm")
    names = timm.list_models(module="vision_transformer") + timm.list_models(module="deit")
    assert len(names) > 150
    dialects = load_all(DIALECTS, plugins=False).values()
    wrong = {}
    for name in names:
        shapes = shapes_of(name)
        expected = [reason for part, reason in REASONS.items() if any(part in key for key in shapes)]
        try:
            m = detect(shapes, dialects)
            own = "timm-parallel" if any(".attns." in key for key in shapes) else "timm"
            said = "" if not expected and m.dialect.name == own else f"read as {m.dialect.name}"
        except (NotRecognised, Refused) as e:
            said = "" if expected and all(reason in str(e) for reason in expected) else str(e)
        if said:
            wrong[name] = said
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_architectures_are_not_taken_for_a_vision_transformer(name: str) -> None:
    try:
        found = detect(shapes_of(name), load_all(DIALECTS, plugins=False).values())
    except (NotRecognised, Refused):
        return
    assert found.dialect.name != "timm"
