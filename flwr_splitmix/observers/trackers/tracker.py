"""The base class of trackers: their data from a run, and the handling of their failures."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flwr_splitmix.events import RoundDone, RunEnded, RunStarted
from flwr_splitmix.observers.mixtures import KeptMixtures
from flwr_splitmix.observers.observer import Observer
from flwr_splitmix.words import without_folders

log = logging.getLogger("flwr.splitmix")

_ONES_OWN = ("run-dir", "resume", "ssl-", "link-")
"""Prefixes of keys that name places of files and machines; they are sent to no tracker."""


class Tracker(Observer, ABC):
    """Passes every round's numbers, failures and images to the methods of a subclass.

    A tracker that cannot begin ends the run before it trains. One that fails later is given up
    with a warning, and the run continues.

    Parameters
    ----------
    folder
        Where it writes; None uses the run's directory.

    Attributes
    ----------
    mixtures
        The mixtures whose images it sends; None for none.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.mixtures: KeptMixtures | None = None
        self._writes = False
        self._totals = {"uplink_bytes": 0, "downlink_bytes": 0}

    @abstractmethod
    def begin(self, event: RunStarted, config: Mapping[str, Any]) -> None:
        """Prepare for writing; a resumed run continues where it stopped.

        Parameters
        ----------
        config
            The run's configuration, without keys that name places of files and machines; of a
            path elsewhere, as of a data set, only the last part.
        """

    @abstractmethod
    def numbers(self, values: Mapping[str, float], server_round: int) -> None:
        """Write a round's numbers by name; all are finite."""

    @abstractmethod
    def text(self, name: str, text: str, server_round: int) -> None:
        """Write a text, if the tracker has texts."""

    @abstractmethod
    def picture(self, name: str, image: np.ndarray, server_round: int) -> None:
        """Write an image, uint8 (height, width, 3), if the tracker has images."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any], error: str) -> None:
        """Write the summary and finish.

        Parameters
        ----------
        error
            Why the run failed, without text that may hold data; "" if nothing went wrong.
        """

    def place(self, event: RunStarted, name: str) -> Path:
        """Return where to write: the tracker's folder, else `name` in the run's directory.

        Raises
        ------
        ValueError
            If there is neither.
        """
        if self.folder is not None:
            return self.folder
        if event.directory is None:
            raise ValueError(
                f"{type(self).__name__} has nowhere to write: give it a folder, or the strategy a "
                "run"
            )
        return event.directory / name

    def on_start(self, event: RunStarted) -> None:
        """Begin, or continue the totals and the output of a resumed run."""
        if event.first_round == 1:
            self._totals = dict.fromkeys(self._totals, 0)
        shared = {k: v for k, v in event.config.items() if not k.startswith(_ONES_OWN)}
        self.begin(event, _shortened(shared))
        self._writes = True

    def on_round(self, event: RoundDone) -> None:
        """Send the row's numbers, the totals of bytes, the reasons of failures, and images."""
        for name, total in self._totals.items():
            self._totals[name] = total + int(event.row.get(name) or 0)
        totals = {f"{name}_total": total for name, total in self._totals.items()}
        values = {name: float(v) for name, v in event.row.items() if _is_finite_number(v)}
        values.pop("round", None)
        self._try(lambda: self.numbers({**values, **totals}, event.server_round))
        if event.failures:
            reasons = (f"client {client}: {why}" for client, why in event.failures.items())
            failures = without_folders("\n\n".join(reasons))
            self._try(lambda: self.text("failures", failures, event.server_round))
        if event.evaluation is not None and self.mixtures is not None:
            for index, mixture in enumerate(self.mixtures.newest):
                image = mixture.image()
                name = f"mixture-{index}"
                self._try(lambda n=name, i=image: self.picture(n, i, event.server_round))  # type: ignore[misc]

    def on_end(self, event: RunEnded) -> None:
        """Write the summary and finish."""
        self._try(lambda: self.finish(_shortened(event.summary), event.public))

    def state(self) -> dict[str, Any]:
        """Return the totals of bytes."""
        return dict(self._totals)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._totals = {name: int(state[name]) for name in self._totals}

    def _try(self, write: Callable[[], None]) -> None:
        """Call `write` if the tracker is active; any exception deactivates the tracker."""
        if not self._writes:
            return
        try:
            write()
        except Exception as error:
            self._writes = False
            log.warning(
                "%s is given up, the run continues: %s: %s",
                type(self).__name__,
                type(error).__name__,
                str(error).partition("\n")[0],
            )


def _shortened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values; of absolute paths only the last part."""
    return {key: Path(v).name if _is_absolute(v) else v for key, v in values.items()}


def _is_absolute(value: Any) -> bool:
    return isinstance(value, str) and (value.startswith("~") or Path(value).is_absolute())


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def as_markdown(values: Mapping[str, Any]) -> str:
    """Return names and values as a Markdown table."""
    lines = (f"| {name} | {value} |" for name, value in sorted(values.items()))
    return "\n".join(["| key | value |", "| --- | --- |", *lines])
