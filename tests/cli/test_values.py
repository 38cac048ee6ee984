"""Values of options that would fill the memory, or mean something unintended."""

from __future__ import annotations

import pytest

from flwr_splitmix.flwr_command import Flwr
from tests.apps.app_config import APPS
from tests.cli.conftest import Splitmix

VISION = str(APPS / "vision")
MATRIX = ("attack", "matrix", "images", "--show")
NO_DATA = "--dataset is empty; name a data set, or leave the option out"
NOISE = ("--sigma-y", "1", "--clip-norm", "1", "--passes", "1")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("runs", "--run-dir", ""), "--run-dir is empty; name a folder, or leave the option out"),
        (("run", VISION, "--run-dir", " "), "--run-dir is empty; name a folder"),
        (("check", VISION, "--nodes", "1000000000"), "is not in the range 1<=x<=100000"),
        (("run", VISION, "--nodes", "1000000000"), "is not in the range 1<=x<=100000"),
        ((*MATRIX, "--cells", ":"), "':' names no cell; leave the cells out for all of them"),
        ((*MATRIX, "--seeds", ""), "seeds is ''; they must be numbers"),
        (("attack", "matrix", "texts", "--show", "--seeds", ""), "seeds is ''; they must be"),
        ((*MATRIX, "--dataset", ""), NO_DATA),
        (("attack", "matrix", "texts", "--show", "--dataset", " "), NO_DATA),
        (("experiment", "run", "cutmixsl-table1", "--dataset", "", "--jobs", "0"), NO_DATA),
        (("experiment", "run", "cutmixsl-table3", "--dataset", "", "--jobs", "0"), NO_DATA),
        (("experiment", "show", "cutmixsl-table1", "--dataset", ""), NO_DATA),
        (("experiment", "show", "cutmixsl-table3", "--dataset", ""), NO_DATA),
        (("attack", "run", "x", "--attack", "linear", "--repeats", "1000000000"), "1<=x<=1000"),
        (("experiment", "run", "cutmixsl-table1", "--epochs", str(10**23)),
         f"epochs is {10**23}; use 1 to 2147483647"),
        (("privacy", "epsilon", "--sigma-s", "1e-9", *NOISE),
         "--sigma-s 1e-09 and --sigma-y 1 are too little noise for a --clip-norm of 1; raise them"),
    ],
)  # fmt: skip
def test_it_is_refused_in_a_sentence(
    typed: tuple[str, ...], message: str, splitmix: Splitmix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Flwr, "start")  # a test that fails must leave no SuperLink behind
    result = splitmix(*typed)
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code != 0
    assert message in " ".join(result.stderr.replace("│", " ").split())
