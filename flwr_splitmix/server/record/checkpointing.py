"""Checkpoints of a strategy: their content, and resuming from one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord
from torch import Tensor

from flwr_splitmix.events import RoundsMissed
from flwr_splitmix.links.arrays import to_arrays, to_tensors
from flwr_splitmix.observers import Audience, Observer
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.begun import Begun
from flwr_splitmix.runs.checkpoints import INITIAL, LOWER, Checkpoint, lower_of
from flwr_splitmix.server.aggregation import LowerAggregator
from flwr_splitmix.server.record.same_protection import PROTECTION, check_same
from flwr_splitmix.storage import StorageError, whole_keys
from flwr_splitmix.words import are, counted

log = logging.getLogger("flwr.splitmix")

_METHOD = "method"
"""Name in a checkpoint's values: which strategy and which aggregator wrote it."""

_ROUND = "round"
"""Name, in an absent observer's entry, of the last round that its state has."""

_TRAINED, _OBSERVERS = "trained", "observers"
"""Names of the last round that each client finished, and of the observers' states."""

_ENTRY = frozenset({"kind", "state"})
"""Names in an observer's entry."""

_SEED, _CLIENTS = "seed-of-run", "clients-of-fit"
"""Names of the run's seed, and of the number of clients that `fit` got."""


_NEEDED = {_METHOD, _SEED, _TRAINED, _OBSERVERS}


def method_of(strategy: object, aggregator: LowerAggregator) -> str:
    """Return the name of a strategy and that of its aggregator, such as "SFL with FedAvg"."""
    averaged = f" with {type(aggregator.strategy).__name__}" if aggregator.averages else ""
    return type(strategy).__name__ + averaged


def facts_of(seed: int, clients: int | None) -> dict[str, Any]:
    """Return further facts that should be equal when a run is resumed, as plain values.

    Parameters
    ----------
    clients
        The number of clients that `fit` got; None inside a Flower run.
    """
    return {_SEED: seed} | ({} if clients is None else {_CLIENTS: clients})


def pack(
    server: tuple[Mapping[str, Tensor], Mapping[str, Any]],
    arrays: ArrayRecord,
    aggregator: LowerAggregator,
    audience: Audience,
    method: str,
    facts: Mapping[str, Any],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a checkpoint's tensors and plain values.

    Parameters
    ----------
    server
        The server's state: tensors and plain values.
    arrays
        The lower segment that the next round starts from.
    method, facts
        As returned by `method_of` and `facts_of`, and perhaps `PROTECTION`; facts of the clients.

    Raises
    ------
    ValueError
        If the server's state has a name that is in use.
    """
    # Where it is not averaged, it must not be taken for one that has been trained.
    prefix = LOWER if aggregator.averages else INITIAL
    lower = {f"{prefix}.{name}": tensor for name, tensor in to_tensors(arrays).items()}
    tensors = {**lower, **aggregator.state()}
    values = {**facts, _METHOD: method, _OBSERVERS: audience.states()}
    for server_part, others in zip(server, (tensors, values), strict=True):
        if clashes := sorted(server_part.keys() & others.keys()):
            raise ValueError(
                f"server_state() returns {clashes[0]!r}, a name that a checkpoint has for "
                "something else; choose another one"
            )
    return {**server[0], **tensors}, {**server[1], **values}


def newest_checkpoint(run: Run, every: int) -> Checkpoint | None:
    """Return a run's newest readable checkpoint; None if it was interrupted before its first.

    Parameters
    ----------
    every
        Rounds from one checkpoint to the next.

    Raises
    ------
    RunError
        If none can be read, or none is left of a run that had some: to begin it anew would remove
        its results.
    """
    if run.checkpoints.rounds():
        try:
            return run.checkpoints.load()
        except StorageError as error:
            raise RunError(f"{error}; restore one of them, or start a new run") from error
    rounds = len(run.rows)
    # A crash may come between the metrics of a round and its checkpoint.
    if run.status == "finished" or rounds > every:
        raise RunError(
            f"run {run.id} has finished {counted(rounds, 'round')}, but "
            f"{run.path / 'checkpoints'} has no checkpoint to resume from: restore one, or start a "
            "new run (without its metrics and its summary this one begins anew)"
        )
    return None


@contextmanager
def restoring(checkpoint: Checkpoint, method: str, facts: Mapping[str, Any]) -> Iterator[None]:
    """Refuse a checkpoint of another run, or one from which the server cannot be restored.

    Another number of clients, and other options of a mixer or a hiding, cause a warning.

    Parameters
    ----------
    method, facts
        As for `pack`. Which clients there are in this process, and how they are protected, is not
        compared if only one of the two runs has them here.

    Raises
    ------
    RunError
        If the checkpoint is in another form than `pack` writes, or belongs to another strategy,
        aggregator, seed, mixer, hiding, model or optimizer.
    """
    of = _of(checkpoint)
    _check_form(checkpoint)
    began = checkpoint.meta[_METHOD]
    if began != method:
        raise RunError(
            f"{of} is from {began}, and {method} cannot resume from it: resume with the strategy "
            "and the aggregator that the run began with, or start a new run"
        )
    checkpoint_facts = {name: checkpoint.meta.get(name, value) for name, value in facts.items()}
    if (seed := checkpoint_facts[_SEED]) != facts[_SEED]:
        raise RunError(
            f"{of} has seed {seed}, and here it is {facts[_SEED]}: resume with the seed that the "
            "run began with, or start a new run"
        )
    if (clients := checkpoint_facts.get(_CLIENTS)) != facts.get(_CLIENTS):
        current_clients = facts[_CLIENTS]
        log.warning(
            "the run had %s, and here %s %d: each is taken for the earlier client of its place in "
            "the list, with the same data; if the data were divided anew, start a new run",
            counted(clients or 0, "client"),
            are(current_clients),
            current_clients,
        )
    if PROTECTION in facts:
        check_same(of, checkpoint_facts[PROTECTION], facts[PROTECTION])
    try:
        yield
    except (LookupError, RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())[:300]
        raise RunError(
            f"{of} does not fit the model or the optimizer ({why}): resume with those that the "
            "run began with, or start a new run"
        ) from error


def unpack(
    checkpoint: Checkpoint, aggregator: LowerAggregator, audience: Audience, initial: ArrayRecord
) -> ArrayRecord:
    """Restore aggregator and observers; return the lower segment.

    A checkpoint does not keep the order of arrays, by which FedAvgM matches them, so the order is
    taken from `initial`, the lower segment that the run started with. Observers without a state
    in the checkpoint are left as they are, and states without an observer are kept (`absent`).

    Raises
    ------
    RunError
        If an observer refuses its state, as a ledger of another relation does.
    """
    aggregator.restore(checkpoint.tensors)
    matched, absent = _matched(audience.observers, checkpoint)
    for observer, entry in matched:
        if entry is not None and entry["state"]:
            with _taking(checkpoint, observer):
                observer.restore(entry["state"])
    audience.absent = [{_ROUND: checkpoint.round, **entry} for entry in absent if entry["state"]]
    lower = lower_of(checkpoint.tensors)
    if lower.keys() == initial.keys():
        lower = {name: lower[name] for name in initial}
    return to_arrays(lower)


def notify_of_missed(
    checkpoint: Checkpoint, audience: Audience, begun: Sequence[Begun], unfinished: Collection[int]
) -> None:
    """Notify observers of finished rounds for which the checkpoint lacks their state.

    Parameters
    ----------
    begun
        The recorded beginnings of the run's rounds and evaluations.
    unfinished
        Clients that have begun rounds which they did not finish.
    """
    trained = whole_keys(checkpoint.meta[_TRAINED])
    for observer, entry in _matched(audience.observers, checkpoint)[0]:
        last = 0 if entry is None else entry.get(_ROUND, checkpoint.round)
        if last == checkpoint.round:
            continue
        finished = {client for client, last_trained in trained.items() if last_trained > last}
        participants = (one.clients for one in begun if last < one.round <= checkpoint.round)
        if clients := finished.union(unfinished, *participants):
            observer.on_missed(RoundsMissed(range(last + 1, checkpoint.round + 1), clients))


@contextmanager
def _taking(checkpoint: Checkpoint, observer: Observer) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:300]
        raise RunError(
            f"{_of(checkpoint)} has a state that {type(observer).__name__} cannot resume from "
            f"({why}): resume with the options that the run began with, or start a new run"
        ) from error


def _check_form(checkpoint: Checkpoint) -> None:
    """Raise RunError if a checkpoint lacks values that `pack` always writes."""
    lacks = sorted(_NEEDED - checkpoint.meta.keys())
    for entry in checkpoint.meta.get(_OBSERVERS, ()):
        lacks += sorted(_ENTRY - entry.keys())
    if lacks:
        raise RunError(
            f"{_of(checkpoint)} lacks {lacks[0]!r}, which this version of flwr-splitmix always "
            "writes: resume with the version that wrote it, or start a new run"
        )


def _of(checkpoint: Checkpoint) -> str:
    return f"the run's checkpoint of round {checkpoint.round}"


def _matched(
    observers: Sequence[Observer], checkpoint: Checkpoint
) -> tuple[list[tuple[Observer, Mapping[str, Any] | None]], list[Mapping[str, Any]]]:
    """Match observers with a checkpoint's states by class, in order.

    Returns
    -------
    Each observer with its entry, or None; and the entries that no observer has. An entry has the
    "kind" and the "state", and a "round" if the observer was absent from later ones.
    """
    waiting: list[Mapping[str, Any]] = list(checkpoint.meta[_OBSERVERS])
    matched = []
    for observer in observers:
        kind = type(observer).__name__
        entry = next((entry for entry in waiting if entry["kind"] == kind), None)
        if entry is not None:
            waiting.remove(entry)
        matched.append((observer, entry))
    return matched, waiting
