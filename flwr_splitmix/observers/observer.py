"""The base class of observers, which watch a run as the server sees it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from flwr_splitmix.events import (
    Exchange,
    RoundBegun,
    RoundDone,
    RoundsMissed,
    RunEnded,
    RunStarted,
    StepDone,
)
from flwr_splitmix.storage import json_values
from flwr_splitmix.suggestions import close_to
from flwr_splitmix.words import one_line, with_article

log = logging.getLogger("flwr.splitmix")


class Observer:
    """Base class; override the methods of interest. Observers must not change what they see.

    Attributes
    ----------
    stop
        Set it to a reason, a text, to end the run after the round in progress, as an exhausted
        privacy budget does: finished rounds are kept, and the run can be resumed. If it is set
        during a round, that round is evaluated as the last one. In `on_round` it is too late for
        that, as its row, with what an evaluation spends, is complete: with `evaluate_every` above 1
        set it in `on_step`. A reason does not outlast its run: the next one begins without.
    replaces
        Entries of a run's summary for which `facts` has better values.
    """

    stop: str = ""
    replaces: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Warn of methods whose names are close to that of an event, and that nothing calls."""
        super().__init_subclass__(**kwargs)
        events = [name[3:] for name in vars(Observer) if name.startswith("on_")]
        class_events = [name[3:] for name in vars(cls) if name.startswith("on_")]
        for name in class_events:
            if name not in events and (similar := close_to(name, events, 1)):
                log.warning(
                    "%s.on_%s gets no event: no observer has such a method; did you mean on_%s?",
                    cls.__name__,
                    name,
                    similar[0],
                )

    def on_start(self, event: RunStarted) -> None:
        """Observe that the run begins, or continues from a checkpoint."""

    def on_missed(self, event: RoundsMissed) -> None:
        """Observe, before `on_start`, that the run has finished rounds without this observer.

        Its state, if it has one from before these rounds, is restored by then.
        """

    def on_begin(self, event: RoundBegun) -> None:
        """Observe which clients attached to a round."""

    def on_exchange(self, event: Exchange) -> None:
        """Observe one payload sent to, or received from, one client."""

    def on_step(self, event: StepDone) -> None:
        """Observe one finished step."""

    def on_round(self, event: RoundDone) -> None:
        """Observe the end of a round."""

    def on_end(self, event: RunEnded) -> None:
        """Observe the end of the run, even if it failed."""

    def facts(self) -> Mapping[str, Any]:
        """Return what to add to the run's summary, as JSON values; nothing by default.

        NaN and infinities are text there ("nan", "inf"), as JSON has none.
        """
        return {}

    def state(self) -> dict[str, Any]:
        """Return the state to keep in checkpoints, as JSON values; nothing by default."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""


class Audience:
    """All observers of a run; passes every event to each of them, in order.

    Parameters
    ----------
    observers
        Read anew for each event, so the list may still grow.

    Attributes
    ----------
    absent
        Entries, as from `states`, of observers that the run had and that are not here: they are
        kept for a resumption that has them again.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers
        self.absent: Sequence[Mapping[str, Any]] = ()

    @property
    def stop(self) -> str:
        """The first reason that an observer gives to end the run; "" if none does.

        If an observer gives a true value other than text, the reason names the observer.
        """
        for observer in self.observers:
            reason: object = observer.stop
            if reason:
                default_reason = f"{type(observer).__name__} asked to stop"
                return reason if isinstance(reason, str) else default_reason
        return ""

    def begin(self) -> None:
        """Begin a run: drop the reasons to stop, and the absent observers, of an earlier one."""
        self.absent = ()
        for observer in self.observers:
            vars(observer).pop("stop", None)

    def facts(self, error: str = "") -> dict[str, Any]:
        """Return the entries that all observers add to the run's summary.

        Parameters
        ----------
        error
            The run's error, if any: an observer that fails here, too, is then left out and its
            error logged, as the run's own is the one to raise.
        """
        facts: dict[str, Any] = {}
        for observer in self.observers:
            try:
                facts |= _facts_of(observer)
            except Exception as failure:
                if not error:
                    raise
                _log_failure(observer, "facts", failure)
        return facts

    def states(self) -> list[dict[str, Any]]:
        """Return each observer's class and state, for a checkpoint, then the absent entries.

        Raises
        ------
        TypeError
            With the observer's name, for a state that is not a dictionary of JSON values.
        """
        entries = []
        for observer in self.observers:
            whose = f"{type(observer).__name__}.state()"
            state = json_values(_mapping(observer.state(), whose), whose)
            entries.append({"kind": type(observer).__name__, "state": state})
        return [*entries, *map(dict, self.absent)]

    def check_facts(self, run_entries: Collection[str]) -> None:
        """Refuse facts that cannot be written, or have a name in `run_entries`.

        Raises
        ------
        TypeError
            With the observer's name, for a value that JSON does not have.
        ValueError
            With the observer's name, for a name that is taken.
        """
        for observer in self.observers:
            whose, facts = f"{type(observer).__name__}.facts()", _facts_of(observer)
            json_values(facts, whose)
            for name in sorted((facts.keys() & run_entries) - observer.replaces):
                raise ValueError(
                    f"{whose} has {name!r}, which the summary has of the run itself; give it "
                    "another name"
                )

    def on_start(self, event: RunStarted) -> None:
        """Notify all observers."""
        for observer in self.observers:
            observer.on_start(event)

    def on_begin(self, event: RoundBegun) -> None:
        """Notify all observers."""
        for observer in self.observers:
            observer.on_begin(event)

    def on_exchange(self, event: Exchange) -> None:
        """Notify all observers."""
        for observer in self.observers:
            observer.on_exchange(event)

    def on_step(self, event: StepDone) -> None:
        """Notify all observers."""
        for observer in self.observers:
            observer.on_step(event)

    def on_round(self, event: RoundDone) -> None:
        """Notify all observers."""
        for observer in self.observers:
            observer.on_round(event)

    def on_end(self, event: RunEnded) -> None:
        """Notify all observers, then raise the first error of any; others are logged.

        Each may have something to close, whatever happens to the others. If the run has failed, all
        are logged: its own error is the one to raise.
        """
        first: Exception | None = None
        for observer in self.observers:
            try:
                observer.on_end(event)
            except Exception as failure:
                if first is None and not event.error:
                    first = failure
                else:
                    _log_failure(observer, "on_end", failure)
        if first is not None:
            raise first


def _log_failure(observer: Observer, method: str, failure: Exception) -> None:
    """Log the error of an observer after another one, which is raised."""
    log.error(
        "%s.%s() failed, too: %s: %s",
        type(observer).__name__,
        method,
        type(failure).__name__,
        one_line(str(failure)),
    )


def _facts_of(observer: Observer) -> Mapping[str, Any]:
    return _mapping(observer.facts(), f"{type(observer).__name__}.facts()")


def _mapping(values: object, whose: str) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise TypeError(
            f"{whose} is {with_article(type(values).__name__)}; expected a dict of JSON values, "
            "which may be empty"
        )
    return values
