"""A run goes on only with what it began with; a refusal leaves it as it was."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAdam
from torch import Tensor

from flwr_splitmix.attacks import Recorder
from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.clients import ClientError, Order, SplitClient, exchange
from flwr_splitmix.events import RunStarted
from flwr_splitmix.links import LinkError, LocalLink
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.checkpoints import lower_of
from flwr_splitmix.storage import under
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


def recorded(toy: Toy, run: Run) -> SplitStrategy:
    recorder = Recorder(directory=run.path / "attacks" / "trace")
    return PSL(toy.upper(), device="cpu", steps_per_round=1, run=run, observers=[recorder])


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
    ("first", "then", "toy", "message"),
    [
        (psl, mixup, TOY, "of round 2 is from PSL, and MixupSL cannot resume from it: resume with"),
        (sfl, psl, TOY, "is from SFL with FedAvg, and PSL cannot"),
        (sfl, fedadam, TOY, "is from SFL with FedAvg, and SFL with FedAdam cannot"),
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
    tmp_path: Path, first: Make, then: Make, toy: Toy, message: str
) -> None:
    """Going on would be wrong silently, or lose the summary and say only `momentum`."""
    run = finished(tmp_path, first)
    strategy = then(toy, Run.open(run.id, home=tmp_path))
    with pytest.raises(RunError, match=message.replace("(", r"\(")):
        strategy.fit(list(toy.make_clients(shares=strategy.mixer.shares)), 4)
    after = Run.open(run.id, home=tmp_path)
    assert (after.status, after.summary, after.rows) == ("finished", run.summary, run.rows)
    assert after.config == run.config


def test_without_its_checkpoints_a_run_does_not_begin_anew(tmp_path: Path) -> None:
    """It would remove its metrics and its summary first."""
    run = finished(tmp_path, psl)
    shutil.rmtree(run.path / "checkpoints")
    rows, summary = run.rows, run.summary
    for status in ("finished", "stopped"):
        again = Run.open(run.id, home=tmp_path)
        with pytest.raises(
            RunError, match=r"has finished 2 rounds, but .* has no checkpoint to resume"
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


@pytest.mark.parametrize(("make", "warned"), [(noisy, True), (psl, False)])
def test_lost_beginnings_are_missed_where_there_is_an_epsilon(
    make: Make, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = finished(tmp_path, make)
    (run.path / "begun.jsonl").unlink()
    strategy = make(TOY, Run.open(run.id, home=tmp_path))
    strategy.fit(list(TOY.make_clients(shares=strategy.mixer.shares)), 3)
    warning = f"{run.path / 'begun.jsonl'} has lost lines; without them epsilon lacks"
    assert (warning in caplog.text) == warned


def seeded(toy: Toy, run: Run, seed: int) -> SplitStrategy:
    return PSL(toy.upper(), device="cpu", steps_per_round=1, run=run, seed=seed)


def test_another_seed_is_refused(tmp_path: Path) -> None:
    run = finished(tmp_path, psl)
    before = contents(run)
    with pytest.raises(RunError, match=r"round 2 has seed 0, and here it is 5: resume with the s"):
        seeded(TOY, Run.open(run.id, home=tmp_path), 5).fit(TOY.make_clients(), 4)
    assert contents(run) == before


@pytest.mark.parametrize(
    ("clients", "ending"), [(1, "here is 1: each"), (2, ""), (3, "here are 3: each")]
)
def test_another_number_of_clients_is_warned_of(
    clients: int, ending: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = finished(tmp_path, psl)
    participants = Toy(clients=3).make_clients()[:clients]
    psl(TOY, Run.open(run.id, home=tmp_path)).fit(participants, 3)
    warning = f"the run had 2 clients, and {ending}"
    assert (warning in caplog.text) == bool(ending)
    assert ("the run had" in caplog.text) == bool(ending)


@pytest.mark.parametrize(("make", "averages"), [(psl, False), (sfl, True)])
def test_only_an_averaged_lower_segment_is_called_lower(
    make: Make, averages: bool, tmp_path: Path
) -> None:
    """Who loads it, as the pages say, would get untrained weights without a word."""
    tensors = finished(tmp_path, make).checkpoints.load().tensors
    assert bool(under("lower", tensors)) == averages
    assert lower_of(tensors).keys() == TOY.lower().state_dict().keys()


def contents(run: Run) -> dict[str, bytes]:
    """Return the files of a run, but for its lock."""
    files = (file for file in run.path.rglob("*") if file.is_file() and file.name != "lock")
    return {str(file.relative_to(run.path)): file.read_bytes() for file in files}


class Unwilling(SplitClient):
    """A client that attaches to no round, or is interrupted by the user when it should."""

    raises: BaseException = ClientError("the door is shut")

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Fail."""
        raise self.raises


class Interrupted(Unwilling):
    """A client that the user interrupts."""

    raises = KeyboardInterrupt()


class Elsewhere(Unwilling):
    """A client that attaches to no round for another reason."""

    raises = ClientError("nobody is at home")


class Beginless(Observer):
    """An observer that cannot begin."""

    def on_start(self, event: RunStarted) -> None:
        """Fail."""
        raise ValueError("no tracker answers")


def other_federation(monkeypatch: pytest.MonkeyPatch, strategy: SplitStrategy) -> None:
    monkeypatch.setattr(LocalLink, "virtual_nodes", 3)
    monkeypatch.setattr(LocalLink, "partitions", {0: 3, 1: 3})


def no_node(monkeypatch: pytest.MonkeyPatch, strategy: SplitStrategy) -> None:
    def directory(link: LocalLink, grid: object, at_least: int = 1) -> dict[int, int]:
        raise LinkError("0 nodes answered")

    monkeypatch.setattr(LocalLink, "directory", directory)


def no_tracker(monkeypatch: pytest.MonkeyPatch, strategy: SplitStrategy) -> None:
    strategy.audience.observers = [*strategy.audience.observers, Beginless()]


def nothing(monkeypatch: pytest.MonkeyPatch, strategy: SplitStrategy) -> None:
    pass


Prevent = Callable[[pytest.MonkeyPatch, SplitStrategy], None]


@pytest.mark.parametrize("status", ["finished", "failed", "stopped"])
@pytest.mark.parametrize(
    ("prevent", "kind", "raises", "message"),
    [
        (other_federation, SplitClient, RunError, "begun with 2 virtual clients, and here are 3"),
        (no_node, SplitClient, LinkError, "0 nodes answered"),
        (no_tracker, SplitClient, ValueError, "no tracker answers"),
        (nothing, Unwilling, LinkError, "round 2: .* left, .*the door is shut"),
        (nothing, Interrupted, KeyboardInterrupt, None),
    ],
)
def test_whatever_ends_a_resumption_before_its_first_round_changes_no_file(
    prevent: Prevent, kind: type[SplitClient], raises: type[BaseException], message: str | None,
    status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Neither summary, number of rounds nor state change.

    The newest checkpoint is missing, so that a resumption repeats a round.
    """
    monkeypatch.setattr(LocalLink, "virtual_nodes", 2)
    monkeypatch.setattr(LocalLink, "partitions", {0: 2, 1: 2})
    run = finished(tmp_path, recorded)
    (run.path / "checkpoints" / "round-000002.safetensors").unlink()
    if status != "finished":
        (run.path / "summary.json").unlink()
        run.note_failure("the power went" if status == "failed" else None)
    assert run.status == status
    before = contents(run)
    strategy = recorded(TOY, Run.open(run.id, home=tmp_path))
    prevent(monkeypatch, strategy)
    with pytest.raises(raises, match=message):
        strategy.fit(TOY.make_clients(kind=kind), 4)
    assert contents(run) == before
    assert Run.open(run.id, home=tmp_path).status == status
    assert "num-partitions" not in caplog.text

    monkeypatch.undo()
    recorded(TOY, Run.open(run.id, home=tmp_path)).fit(TOY.make_clients(), 3)
    after = Run.open(run.id, home=tmp_path)
    assert (after.status, after.failure, len(after.rows)) == ("finished", None, 3)
    assert after.config["num-server-rounds"] == 3


class FailsOnceAdmitted(SplitClient):
    """A client that attaches to a round and takes no step of it."""

    @exchange
    def step(self, **_: Any) -> dict[str, Any]:
        """Fail."""
        raise ClientError("the light went out")


def test_a_resumed_run_that_fails_in_a_round_has_failed(tmp_path: Path) -> None:
    run = finished(tmp_path, psl)
    with pytest.raises(LinkError, match="the light went out"):
        psl(TOY, Run.open(run.id, home=tmp_path)).fit(TOY.make_clients(kind=FailsOnceAdmitted), 4)
    after = Run.open(run.id, home=tmp_path)
    assert (after.status, after.summary, len(after.rows)) == ("failed", None, 2)
    assert "the light went out" in (after.failure or "")
    assert after.config["num-server-rounds"] == 4


def test_a_new_run_that_begins_no_round_has_failed(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    with pytest.raises(LinkError, match="the door is shut"):
        psl(TOY, run).fit(TOY.make_clients(kind=Unwilling), 2)
    assert run.status == "failed"


def test_a_run_that_never_began_keeps_its_newest_failure(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    with pytest.raises(LinkError, match="the door is shut"):
        psl(TOY, run).fit(TOY.make_clients(kind=Unwilling), 2)
    again = Run.open(run.id, home=tmp_path)
    with pytest.raises(LinkError, match="nobody is at home"):
        psl(TOY, again).fit(TOY.make_clients(kind=Elsewhere), 2)
    assert "nobody is at home" in (again.failure or "")


def test_a_full_disk_when_a_run_goes_on_is_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not stopped without a reason."""
    run = finished(tmp_path, psl)

    def full(run: Run, last_round: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Run, "rewind", full)
    again = Run.open(run.id, home=tmp_path)
    with pytest.raises(
        RunError, match=r"cannot be resumed, as .* cannot be written: No space left"
    ):
        psl(TOY, again).fit(TOY.make_clients(), 4)
    assert "No space left" in (again.failure or "")


@pytest.mark.parametrize(
    ("rounds", "kind", "remaining"), [(1, SplitClient, [1]), (4, Unwilling, [1, 2])]
)
def test_recorded_steps_after_the_checkpoint_go_when_the_run_goes_on(
    rounds: int, kind: type[SplitClient], remaining: list[int], tmp_path: Path
) -> None:
    run = finished(tmp_path, recorded)
    (run.path / "checkpoints" / "round-000002.safetensors").unlink()
    again = Run.open(run.id, home=tmp_path)
    with contextlib.suppress(LinkError):
        recorded(TOY, again).fit(TOY.make_clients(kind=kind), rounds)
    trace = DiskTrace(run.path / "attacks" / "trace")
    assert sorted({server_round for server_round, _ in trace.places}) == remaining
