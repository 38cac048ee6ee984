"""A run goes on only with what it began with; a refusal leaves it as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAdam

from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.strategies import PSL, SFL, MixupSL, SplitStrategy
from flwr_splitmix.testing.toy import Toy, sgd

TOY, OTHER = Toy(clients=2), Toy(clients=2, classes=5)

Make = Callable[[Toy, Run], SplitStrategy]


def finished(home: Path, make: Make) -> Run:
    run = Run.create({"num-server-rounds": 2}, name="x", home=home)
    make(TOY, run).fit(TOY.make_clients(), 2)
    return Run.open(run.id, home=home)


def psl(toy: Toy, run: Run) -> SplitStrategy:
    return PSL(toy.upper(), device="cpu", steps_per_round=1, run=run)


def sfl(toy: Toy, run: Run) -> SplitStrategy:
    return SFL(toy.upper(), device="cpu", steps_per_round=1, run=run)


def mixup(toy: Toy, run: Run) -> SplitStrategy:
    return MixupSL(toy.upper(), device="cpu", steps_per_round=1, run=run)


def fedadam(toy: Toy, run: Run) -> SplitStrategy:
    return SFL(toy.upper(), device="cpu", steps_per_round=1, run=run, aggregator=FedAdam())


def momentum(toy: Toy, run: Run) -> SplitStrategy:
    optimizer = sgd(0.1, momentum=0.9)
    return PSL(toy.upper(), device="cpu", steps_per_round=1, run=run, optimizer=optimizer)


@pytest.mark.parametrize(
    ("first", "then", "toy", "said"),
    [
        (psl, mixup, TOY, "of round 2 is of PSL, and MixupSL cannot go on from it: resume with"),
        (sfl, psl, TOY, "is of SFL with FedAvg, and PSL cannot"),
        (sfl, fedadam, TOY, "is of SFL with FedAvg, and SFL with FedAdam cannot"),
        (
            psl,
            momentum,
            TOY,
            "not fit the model or the optimizer (this state of an optimizer has no 'dampening'",
        ),
        (psl, psl, OTHER, "does not fit the model or the optimizer (.*size mismatch"),
    ],
)
def test_another_strategy_or_model_leaves_the_run_as_it_was(
    tmp_path: Path, first: Make, then: Make, toy: Toy, said: str
) -> None:
    """The first three went on silently; the others lost the summary, and said only `momentum`."""
    run = finished(tmp_path, first)
    strategy = then(toy, Run.open(run.id, home=tmp_path))
    with pytest.raises(RunError, match=said.replace("(", r"\(")):
        strategy.fit(list(toy.make_clients(shares=strategy.mixer.shares)), 4)
    after = Run.open(run.id, home=tmp_path)
    assert (after.status, after.summary, after.rows) == ("finished", run.summary, run.rows)
    assert after.config == run.config
