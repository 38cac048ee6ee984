"""What a ServerApp says of itself as its run begins."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version

from flwr.app import Context

from flwr_splitmix.runs import Run
from flwr_splitmix.runs.flower_run import note_flower_run

log = logging.getLogger("flwr.splitmix")


def begin(run: Run, context: Context) -> None:
    """Say in which environment the run is, and note Flower's id of it in its directory.

    A SuperLink that another environment has started runs the app with that one's packages; the
    line in the log is how a user of `flwr run` can tell.
    """
    log.info(
        "run %s with flwr-splitmix %s of the environment %s",
        run.id,
        version("flwr-splitmix"),
        sys.prefix,
    )
    try:
        note_flower_run(run, context.run_id)
    except OSError as error:
        log.warning("%s: %s", run.path, error.strerror)
