"""Facts from a grid about the Flower run that a strategy is started in."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flwr.serverapp import Grid

from flwr_splitmix.runs import Run
from flwr_splitmix.runs.flower_run import ABOUT_RESUMING

log = logging.getLogger("flwr.splitmix")


_NOT_TRAINED = ABOUT_RESUMING | {"num-server-rounds"}
"""Keys that change nothing in a client: the run to resume, and its number of rounds."""


def id_of(grid: Grid | None) -> int | None:
    """Return Flower's id of the run; None outside of one, as in `fit` or a test."""
    run = getattr(grid, "run", None)
    return None if run is None else int(run.run_id)


def given_to(grid: Grid | None) -> Mapping[str, Any]:
    """Return the keys that `--run-config` gives a Flower run, without the app's defaults.

    A grid without a Flower run, as in a test, has none.
    """
    run = getattr(grid, "run", None)
    return {} if run is None else dict(run.override_config)


def warn_of_other_values(run: Run, given: Mapping[str, Any]) -> None:
    """Log the keys whose present values differ from those that clients are built from.

    Parameters
    ----------
    given
        See `given_to`. Keys that the run's configuration lacks reach clients and server alike.
    """
    config = run.config
    if named := ", ".join(
        f"{key} is {config[key]!r}, not {value!r}"
        for key, value in given.items()
        if key not in _NOT_TRAINED and key in config and config[key] != value
    ):
        log.warning(
            "run %s is resumed: its clients are built from the configuration that it began with, "
            "not from what is given now: %s. In the ServerApp context.run_config has what is given "
            "now, so read run.config there",
            run.id,
            named,
        )
