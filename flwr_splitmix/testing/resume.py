"""Law 5, resume equals uninterrupted: a resumed run ends as if it had not been interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flwr_splitmix.events import Exchange
from flwr_splitmix.observers import Observer
from flwr_splitmix.optimizers import adamw
from flwr_splitmix.runs import Run
from flwr_splitmix.schedule import WarmupCosine
from flwr_splitmix.testing.agreement import check_same_results, read_results
from flwr_splitmix.testing.toy import AnyToy, MakeAny, Toy, step_of


class InterruptionError(Exception):
    """The run is interrupted, as by a crash."""


class StopIn(Observer):
    """Observer that stops a run in the middle of a round."""

    def __init__(self, server_round: int, number: int = 1) -> None:
        self.place = (server_round, number)

    def on_exchange(self, event: Exchange) -> None:
        """Raise InterruptionError after a given step, when the next one is about to begin."""
        if (event.server_round, step_of(event) - 1) == self.place:
            raise InterruptionError


def check_resume_equals_uninterrupted(
    make_strategy: MakeAny,
    home: Path | None = None,
    toy: AnyToy | None = None,
    *,
    num_rounds: int = 4,
    stop_in: int = 3,
    lose_newest: bool = False,
    **options: Any,
) -> None:
    """Compare an uninterrupted run with one that is stopped during a round and resumed.

    The second run is resumed from disk with a new strategy and new clients. Both sides use AdamW
    and a cosine schedule with warm-up; losses, evaluations, weights and optimizer states must be
    equal bit for bit.

    Parameters
    ----------
    home
        Folder in which the runs' directories are made; None takes one that is removed in the end.
    num_rounds
        Number of rounds.
    stop_in
        The round that is interrupted.
    lose_newest
        Whether to delete the newest checkpoint, too, which a process killed between rounds may
        lose: clients must go back to their state at the checkpoint before.
    **options
        Options of the strategy.

    Raises
    ------
    AssertionError
        With the round or the tensor that differs.
    """
    toy = toy or Toy(tests=6)
    with _folder(home) as runs:
        _compare(make_strategy, runs, toy, num_rounds, stop_in, lose_newest, options)


@contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    """Yield a folder: the given one, or one that is removed afterwards."""
    if folder is not None:
        yield folder
        return
    with TemporaryDirectory() as temporary:
        yield Path(temporary)


def _compare(
    make_strategy: MakeAny,
    home: Path,
    toy: AnyToy,
    num_rounds: int,
    stop_in: int,
    lose_newest: bool,
    options: dict[str, Any],
) -> None:
    def fit(run: Run, *observers: Observer) -> None:
        schedule = WarmupCosine(warmup=1.5)
        strategy = make_strategy(
            toy.server(),
            optimizer=adamw(0.01),
            schedule=schedule,
            device="cpu",
            seed=7,
            evaluation="federated" if toy.tests else "none",
            run=run,
            observers=observers,
            **options,
        )
        strategy.fit(toy.clients_for(strategy, adamw(0.01), schedule=schedule), num_rounds)

    whole = Run.create({}, name="whole", home=home)
    fit(whole)
    stopped = Run.create({}, name="stopped", home=home)
    try:
        fit(stopped, StopIn(stop_in))
    except InterruptionError:
        pass
    else:
        raise AssertionError(f"law 5: the run was not stopped, it has no round {stop_in}")
    if lose_newest:
        newest = max(stopped.checkpoints.rounds())
        (stopped.path / "checkpoints" / f"round-{newest:06d}.safetensors").unlink()
    fit(Run.open(stopped.id, home=home))
    try:
        check_same_results(
            read_results(Run.open(whole.id, home=home)),
            read_results(Run.open(stopped.id, home=home)),
        )
    except AssertionError as error:
        raise AssertionError(f"law 5, resume equals uninterrupted: {error}") from error
