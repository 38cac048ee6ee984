"""Clients know of the last step of a round, of which no later upload would tell that it failed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from flwr_splitmix.clients.split.lower_end import LowerEnd
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.strategies import PSL, CutMixSL, SplitStrategy
from flwr_splitmix.testing.toy import Toy, sgd

TOY = Toy(clients=3, batch_norm=False)
STEPS = 3
WHOLE = partial(PSL)
ARRIVAL = partial(PSL, pace=Pace(group_order="arrival"))
LEFT_OVER = partial(CutMixSL, k=2, leftover="skip")
IN_PARTS = partial(PSL, micro_batches=2, server_update="sum")


def last_flags(
    make: Any, monkeypatch: pytest.MonkeyPatch, rounds: int = 2
) -> dict[LowerEnd, list[bool]]:
    """Return, for each lower segment, whether each of its steps was said to be a round's last."""
    flags: dict[LowerEnd, list[bool]] = {}
    step = LowerEnd.step

    def noting(self: LowerEnd, *arguments: Any, last: bool = False) -> None:
        flags.setdefault(self, []).append(last)
        step(self, *arguments, last=last)

    monkeypatch.setattr(LowerEnd, "step", noting)
    strategy: SplitStrategy = make(
        TOY.upper(), optimizer=sgd(0.1), schedule=constant, steps_per_round=STEPS, device="cpu"
    )
    strategy.fit(TOY.make_clients(sgd(0.1)), rounds)
    assert len(flags) == TOY.clients
    return flags


@pytest.mark.parametrize("make", [WHOLE, ARRIVAL, IN_PARTS], ids=["whole", "arrival", "in parts"])
def test_a_rounds_last_step_and_no_other_waits_for_an_accelerator(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call without a plan does not pass for the last one, and a batch in parts has one."""
    for lasts in last_flags(make, monkeypatch).values():
        assert lasts == [*[False] * (STEPS - 1), True] * 2


def test_who_is_left_over_in_the_last_steps_is_told_with_its_own_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(lasts[-1] for lasts in last_flags(LEFT_OVER, monkeypatch, rounds=1).values())
