"""Law 5 over all mixers: stopped in the midst of a round, continued by new objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.testing.laws import check_resume_equals_uninterrupted
from tests.laws.makers import NAMES, maker, toy_for


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fraction_train": 0.5, "toy": {"clients": 6}},
        # Of rounds 1 to 3 only 2 has a checkpoint left: the clients go back to it.
        {"checkpoint_every": 2, "stop_in": 4, "lose_newest": True},
        {"stop_in": 4, "lose_newest": True, "fraction_train": 0.5, "evaluate_every": 2},
    ],
    ids=["every round", "half of the clients", "killed", "killed, half of the clients"],
)
def test_every_mixer(name: str, options: dict[str, Any], tmp_path: Path) -> None:
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
