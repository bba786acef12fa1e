"""Names of what is not decayed, as training scripts list them: held against a network's own, and trained by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitconv.checks.base.plan import Plan
from vitconv.checks.base.recipe import read_recipe
from vitconv.checks.base.run import run_one
from vitconv.checks.base.target import Wanted, context_of
from vitconv.checks.base.training import optimiser
from vitconv.errors import UsageError
from vitconv.layout.groups import matched
from vitconv.registry import CHECKS, load

LIST = ("bias", "norm", "cls_token", "pos_embed")


@pytest.mark.parametrize(
    ("names", "levels", "says"),
    [
        (LIST, ["ok"], "misses none"),
        ((*LIST, "cls_tokn"), ["warn"], "cls_tokn is in no parameter's name"),
        (("bias", "norm", "pos_embd", "cls_token"), ["warn", "warn"], "does nothing; pos_embed is"),
        (("bias", "norm"), ["warn"], "takes in 12 parameters and misses 2"),
        (("*_token", "pos_embed"), ["warn"], "12 of them vectors"),
    ],
)  # fmt: skip
def test_no_decay_names_are_held_against_the_networks_own(
    names: tuple[str, ...], levels: list[str], says: str, tmp_path: Path
) -> None:
    pytest.importorskip("timm")
    path = tmp_path / "r.yaml"
    sizes = "model_name: vit_tiny_patch16_224, depth: 1, img_size: 32, embed_dim: 48, num_heads: 3"
    path.write_text(f"timm: {{{sizes}}}\ntraining: {{no_decay: {json.dumps(names)}}}\n")
    context = read_recipe(path).context()
    found = [f for f in run_one(context, load(CHECKS, "decay-groups")).findings if "no_decay" in f.text]
    assert [f.level for f in found] == levels
    assert any(says in f.text for f in found), [f.text for f in found]
    # What is trained goes by the same names.
    optim = optimiser(context.network.module, context.bridge, context.plan)
    own = {id(p): n for n, p in context.network.module.named_parameters()}
    free = {own[id(p)] for p in optim.others}
    assert free == {n for n in own.values() if any(matched(pattern, n) for pattern in names)}


def test_no_decay_names_say_nothing_of_the_reference() -> None:
    context = context_of("vit_tiny", Wanted(("depth=1", "dim=48", "heads=3"), plan=Plan(no_decay=("cls_token",))))
    found = [f for f in run_one(context, load(CHECKS, "decay-groups")).findings if "no_decay" in f.text]
    assert [(f.level, "our reference" in f.text) for f in found] == [("info", True)]
    optim = optimiser(context.network.module, context.bridge, context.plan)
    assert len(optim.others) == len(optimiser(context.network.module, context.bridge, Plan()).others) > 1


@pytest.mark.parametrize("names", [3, [""], ["norm", 1], {"norm": 1}])
def test_no_decay_is_a_list_of_names(names: object) -> None:
    with pytest.raises(UsageError, match="no_decay: found"):
        Plan(no_decay=names)  # type: ignore[arg-type]
