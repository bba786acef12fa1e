"""What a verification will take is said before it runs."""

from __future__ import annotations

from typing import Any

import pytest

from vitconv.parity.plan import Plan
from vitconv.parity.verify import verify

QUICK: dict[str, Any] = {"precisions": ["fp32"], "inputs": ["coloured"]}


def plan_of(live: Any, **more: Any) -> Plan:
    told: list[Any] = []
    verify(
        live(), live(), announce=told.append, progress=lambda done, total, what: told.append(what), **{**QUICK, **more}
    )
    assert isinstance(told[0], Plan), "passes ran ahead of the plan"
    assert sum(isinstance(t, Plan) for t in told) == 1
    return told[0]


def test_the_plan_comes_first_and_is_in_the_report(live):
    plan = plan_of(live)
    assert plan.passes > 10 and plan.nbytes > 0
    assert f"{plan.passes} passes planned, and at most " in plan.sentence
    environment = verify(live(), live(), **QUICK).environment
    assert environment["planned memory, bytes"] == plan.nbytes
    assert environment["planned passes"] == plan.passes


def test_what_is_left_out_takes_no_memory(live):
    whole, stages = plan_of(live), plan_of(live, skip=["why"])
    assert stages.nbytes < whole.nbytes and "the search for a cause" not in stages.parts
    blockwise = plan_of(live, skip=["why"], blockwise=True)
    key = "values between forward and backward"
    assert blockwise.parts[key] < stages.parts[key]


def test_a_network_that_does_not_run_has_no_plan(live):
    from vitconv.errors import Refused
    from vitconv.vit.model import ViT

    class Broken(ViT):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no such kernel")

    told: list[Plan] = []
    with pytest.raises(Refused, match="no such kernel"):
        verify(live(lambda m: setattr(m, "__class__", Broken)), live(), announce=told.append, **QUICK)
    assert "not known" in told[0].sentence


@pytest.mark.slow
def test_what_is_stated_bounds_what_is_taken():
    pytest.importorskip("timm")
    import json
    import subprocess
    import sys

    code = (
        "import json; from vitconv.bench.verify import bench;"
        "f = bench('vit_tiny_patch16_224', ['img_size=96', 'depth=6'], 1e-5, ['fp32']);"
        "print(json.dumps([f.stated, f.peak]))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    stated, peak = json.loads(done.stdout.strip().splitlines()[-1])
    # The libraries that are imported on the way are not counted.
    assert peak <= stated + 2e8
    assert stated <= 4 * peak
