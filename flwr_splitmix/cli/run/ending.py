"""The end of `splitmix run`: the run's summary, or one sentence on what ended it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from flwr_splitmix.cli.run.following import RunFollower
from flwr_splitmix.cli.terminal import fail
from flwr_splitmix.runs import Run, RunError

if TYPE_CHECKING:
    from flwr_splitmix.flwr_command import Flwr

INTERRUPTED = 130
"""Exit status of a run ended by Ctrl-C, as in a shell."""

NO_RUN = (
    "the run has completed; there is no summary, because no run of it is in {home}: an app of your "
    "own keeps one as docs/own-app.md says (*Keeping and resuming a run*), and the ServerApp of a "
    "SuperLink elsewhere keeps it there"
)
"""What is said at the end of a run that has left no directory where it was looked for."""

_SETTLE_SECONDS = 30.0  # between the end of the log and Flower's final status


def end_run(
    flwr: Flwr,
    followed: RunFollower,
    values: dict[str, Any],
    *,
    interrupted: bool,
    expected: bool,
) -> None:
    """Print the summary, or one red sentence, and exit with the run's status.

    Parameters
    ----------
    values
        Whole run configuration, whose keys a resumption repeats.
    interrupted
        Whether a stop of the run was requested.
    expected
        Whether the run must have a directory in the home that was looked in.
    """
    from flwr_splitmix.flwr_command import FlwrError

    try:
        status, details = _final_status(flwr, followed.flower_run)
    except FlwrError as error:
        fail(f"{error}; Flower's log: {followed.log}")
    if expected and status == "finished:completed":
        _check_home(followed)
    _finish(followed, status, details, interrupted, resuming_keys(followed, values))


def _final_status(flwr: Flwr, flower_run: int) -> tuple[str, str]:
    """Return the status and its details once the run has ended."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        status, details = flwr.status(flower_run)
        if status.startswith("finished") or time.monotonic() > deadline:
            return status, details
        time.sleep(1.0)


def _await_release(run: Run) -> None:
    """Wait until the ServerApp of a run that was stopped has ended, so that it can be resumed."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        try:
            run.check_free()
        except RunError:
            time.sleep(0.5)
        else:
            return


def resuming_keys(followed: RunFollower, values: dict[str, Any]) -> str:
    """Return the keys that resume the run; "" without a directory, or for an app without them."""
    if followed.run is None or "resume" not in values:
        return ""
    from flwr_splitmix.flwr_command import config_text

    keys = {"resume": followed.run.id, "run-dir": values.get("run-dir")}
    return config_text({key: value for key, value in keys.items() if value})


def _check_home(followed: RunFollower) -> None:
    """Exit with a sentence if a run that has completed has no directory in the home expected."""
    if followed.run is None:
        fail(
            f"the run has completed, but it is not in {followed.home}: the local SuperLink that "
            "was already up has another SPLITMIX_HOME; stop it, or give --run-dir (Flower's log: "
            f"{followed.log})"
        )


def _finish(
    followed: RunFollower, status: str, details: str, interrupted: bool, resuming: str
) -> None:
    """Print the summary, or one red sentence, and exit with the run's status."""
    if followed.run is not None and followed.run.config_file.removed:
        ended = {"finished:completed": "has completed", "running": "may still be running"}
        fail(
            f"{followed.run.path} was removed while the run was in progress; the run "
            f"{ended.get(status, 'was stopped')}, and nothing of it is kept"
        )
    if not status.startswith("finished"):
        fail(
            f"Flower's log ended, but run {followed.flower_run} may still be running: Flower "
            f"reports {status!r}; `flwr log {followed.flower_run} --stream` follows it, and `flwr "
            f"stop {followed.flower_run}` ends it (Flower's log until then: {followed.log})"
        )
    stopped = status != "finished:completed" and (interrupted or status == "finished:stopped")
    if stopped and followed.run is not None:
        _await_release(followed.run)
    # A run may come to its end while it is being stopped.
    if status == "finished:completed" or (stopped and followed.finished):
        if followed.run is not None:
            from flwr_splitmix.cli.results.show import show

            show(followed.run.id, run_dir=followed.home)
        else:
            typer.echo(NO_RUN.format(home=followed.home))
        typer.echo(f"\nFlower's log: {followed.log}")
        return
    if stopped:
        resume = f"; resume it with {resuming}" if resuming else ""
        fail(f"the run was stopped{resume} (Flower's log: {followed.log})", INTERRUPTED)
    reason = _reason(details) or followed.raised or f"Flower reports {status!r}"
    remedy = ""
    if resuming and followed.run is not None:
        remedy = f"; once that is fixed, {resuming} resumes the run"
        if not followed.run.rows:
            remedy = "; no round was finished, so once that is fixed, start it again"
    fail(f"the run failed: {reason}{remedy} (Flower's log: {followed.log})")


def _reason(details: str) -> str:
    """Return the exception's message from Flower's details."""
    lines = [line.strip() for line in details.strip().splitlines() if line.strip()]
    return " ".join(lines[-1].split())[:600] if lines else ""
