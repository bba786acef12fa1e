"""What a bare checkpoint of xformers' factory is told it lacks: its own eps, not another library's."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitconv.cli.main import run

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden"
EPS = "in the blocks of xformers' factory norm_eps is 1e-5, and 1e-6 where Triton ran (0.0.10 to 0.0.26)"


@pytest.mark.parametrize(
    ("case", "told", "eps", "host"),
    [
        ("xformers/xformers-0.0.22-pre-MLP-plain", [], True, True),
        ("xformers/xformers-0.0.9-pre-MLP-plain", ["--set-a", "release=0.0.9"], False, True),
        ("xformers-options/xformers-0.0.11-example", [], True, False),
    ],
    ids=["eps unknown", "eps by release", "an example, which no host builds"],
)
def test_the_eps_of_the_library_and_the_host_that_fits(case, told, eps, host, capsys) -> None:
    path = str(FOLDER / f"{case}.pth")
    assert run(["verify", path, path, *told]) == 3
    said = capsys.readouterr().err
    assert (EPS in said) is eps, said
    assert ("xformers-style:CONFIG.yaml@" in said) is host
