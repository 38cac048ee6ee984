"""Log line and record of a ServerApp at the start of its run."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version

from flwr.app import Context

from flwr_splitmix.runs import Run
from flwr_splitmix.runs.flower_run import note_flower_run

log = logging.getLogger("flwr.splitmix")


def begin(run: Run, context: Context) -> None:
    """Log the environment of a run, and note Flower's run id in the run's directory.

    A SuperLink started in another environment runs the app with that environment's packages; the
    log line tells users of `flwr run`.
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
