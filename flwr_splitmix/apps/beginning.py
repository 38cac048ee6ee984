"""The log line of a ServerApp at the start of its run."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version

from flwr_splitmix.runs import Run

log = logging.getLogger("flwr.splitmix")


def begin(run: Run) -> None:
    """Log the environment of a run.

    A SuperLink started in another environment runs the app with that environment's packages; the
    log line tells users of `flwr run`.
    """
    log.info(
        "run %s with flwr-splitmix %s of the environment %s",
        run.id,
        version("flwr-splitmix"),
        sys.prefix,
    )
