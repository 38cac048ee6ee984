"""A run goes on only with what it began with; a refusal leaves it as it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAdam

from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.strategies import DPSL, PSL, SFL, MixupSL, SplitStrategy
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


def noisy(toy: Toy, run: Run) -> SplitStrategy:
    noise = GaussianNoise(sigma_s=20.0, sigma_y=10.0, clip_norm=1.5)
    return DPSL(toy.upper(), device="cpu", steps_per_round=1, run=run, noise=noise)


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


def test_without_its_checkpoints_a_run_does_not_begin_anew(tmp_path: Path) -> None:
    """It did, without a word, and first removed its metrics and its summary."""
    run = finished(tmp_path, psl)
    shutil.rmtree(run.path / "checkpoints")
    rows, summary = run.rows, run.summary
    for status in ("finished", "failed"):
        again = Run.open(run.id, home=tmp_path)
        with pytest.raises(
            RunError, match=r"has finished 2 rounds, but .* has no checkpoint to go"
        ):
            psl(TOY, again).fit(TOY.make_clients(), 4)
        after = Run.open(run.id, home=tmp_path)
        assert (after.status, after.summary, after.rows) == (status, summary, rows)
        (run.path / "summary.json").unlink(missing_ok=True)
        summary = None


def test_checkpoints_that_cannot_be_read_say_what_can_be_done(tmp_path: Path) -> None:
    run = finished(tmp_path, psl)
    for file in (run.path / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RunError, match="of rounds 1, 2 can be read; restore one of them, or start"):
        psl(TOY, Run.open(run.id, home=tmp_path)).fit(TOY.make_clients(), 4)


def test_a_run_interrupted_before_its_first_checkpoint_says_that_it_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create({"num-server-rounds": 2}, name="x", home=tmp_path)
    run.begin(1, [0, 1])
    psl(TOY, Run.open(run.id, home=tmp_path)).fit(TOY.make_clients(), 2)
    assert f"run {run.id} has no checkpoint yet and begins anew" in caplog.text
    assert [row["round"] for row in run.rows] == [1, 2]


def test_a_run_killed_before_a_late_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    run = finished(tmp_path, psl)
    shutil.rmtree(run.path / "checkpoints")
    (run.path / "summary.json").unlink()
    again = Run.open(run.id, home=tmp_path)
    late = PSL(TOY.upper(), device="cpu", steps_per_round=1, run=again, checkpoint_every=2)
    late.fit(TOY.make_clients(), 3)
    assert [row["round"] for row in again.rows] == [1, 2, 3]


@pytest.mark.parametrize(("make", "told"), [(noisy, True), (psl, False)])
def test_lost_beginnings_are_missed_where_there_is_an_epsilon(
    make: Make, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = finished(tmp_path, make)
    (run.path / "begun.jsonl").unlink()
    strategy = make(TOY, Run.open(run.id, home=tmp_path))
    strategy.fit(list(TOY.make_clients(shares=strategy.mixer.shares)), 3)
    said = f"{run.path / 'begun.jsonl'} has lost lines; without them epsilon lacks"
    assert (said in caplog.text) == told
