"""One report that has something of everything, hostile names included."""

from __future__ import annotations

import math

import pytest

from vitconv.report import Band, Chart, Column, Fact, Report, Row, Section, Series, Verdict

HOSTILE = "<script>alert('x')</script>|`*_\x1b[31m&\u202e"


@pytest.fixture
def full() -> Report:
    chart = Chart(
        title="Error by depth",
        x_label="depth",
        y_label="relative error",
        series=(
            Series("timm", ((0.0, 1e-7), (1.0, 2e-7), (2.0, 4e-7))),
            Series("other", ((0.0, 1e-6), (1.0, math.nan), (2.0, 1e-3))),
        ),
        bands=(Band("correct variants", ((0.0, 5e-8, 2e-7), (1.0, 1e-7, 4e-7), (2.0, 2e-7, 8e-7))),),
        ticks=("embed", "block 0", "head"),
    )
    stages = Section(
        key="stages",
        title="Same function?",
        columns=(Column("stage", "stage"), Column("error", "error", "number"), Column("time", "time", "seconds")),
        rows=(
            Row(("logits", 2.1e-4, 1.25), "fail", "first apart at blocks.0.norm1"),
            Row(("mapped", 0.0, 0.05), "ok"),
            Row(("onnx", None, None), "skip", "onnxruntime is not installed"),
            Row(("gradients", math.inf, 2.0), "warn", "one of 12"),
        ),
        notes=("Decided in float64.",),
        charts=(chart,),
    )
    names = Section(
        key="names",
        title="Names",
        columns=(Column("key", "key", "code"), Column("bytes", "size", "bytes")),
        rows=(Row((HOSTILE, 1536)), Row(("embed.pos", 86_567_656))),
    )
    return Report(
        schema="vitconv.verify",
        version=3,
        title="a.safetensors against b.pth",
        verdict=Verdict("differs", "fail", "The outputs part by 2.1e-4."),
        sides=("timm", "xformers"),
        facts=(Fact("eps", (1e-6, 1e-5), "number"), Fact("parameters", (86567656, 86567656), "count")),
        sections=(stages, names),
        environment=(Fact("torch", ("2.14.1",)),),
        command="vitconv verify a.safetensors b.pth",
        data={"where": "blocks.0.norm1", "worst": math.nan},
    )
