"""Law 5 over all mixers: stopped in the midst of a round, continued by new objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.testing.laws import check_resume_equals_uninterrupted
from tests.laws.makers import NAMES, maker, toy_for

# Of rounds 1 to 3 only 2 has a checkpoint left: the clients go back to it.
KILLED = {"checkpoint_every": 2, "stop_in": 4, "lose_newest": True}
HALF = {"fraction_train": 0.5}
OPTIONS: dict[str, dict[str, Any]] = {
    "every round": {"num_rounds": 3, "stop_in": 2},
    "killed, half of the clients": {
        "stop_in": 4, "lose_newest": True, **HALF, "evaluate_every": 2
    },
}  # fmt: skip
OF_THE_LOOP: dict[str, dict[str, Any]] = {
    "half of the clients": {**HALF, "toy": {"clients": 6}},
    "killed": KILLED,
}
"""Properties of the loop of rounds, whatever is mixed."""

CASES = [(name, how) for name in NAMES for how in OPTIONS] + [
    (name, how) for name in ("PSL", "CutMixSL", "CutMixSFL") for how in OF_THE_LOOP
]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_every_mixer(name: str, how: str, tmp_path: Path) -> None:
    options = {**OPTIONS, **OF_THE_LOOP}[how]
    fields = {"tests": 6, **options.get("toy", {})}
    rest = {key: value for key, value in options.items() if key != "toy"}
    check_resume_equals_uninterrupted(maker(name), tmp_path, toy_for(name, **fields), **rest)


def test_the_law_notices_a_lost_data_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = SplitClient.restore

    def forgetful(self: SplitClient, tensors: Any, meta: Any) -> None:
        right(self, tensors, {**meta, "drawn": 0})

    monkeypatch.setattr(SplitClient, "restore", forgetful)
    with pytest.raises(AssertionError, match="law 5, resume equals uninterrupted: round 3: loss"):
        check_resume_equals_uninterrupted(maker("PSL"), tmp_path)


def test_the_law_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/own-mixer.md names it beside laws that need nothing else either."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    check_resume_equals_uninterrupted(maker("PSL"), num_rounds=2, stop_in=2)
    assert not [*tmp_path.iterdir()]
