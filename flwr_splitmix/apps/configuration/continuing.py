"""The configuration of a continued run: its own, but for rounds, places and time limits."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.configuration.project import kind_of_run
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.flower_run import ABOUT_RESUMING
from flwr_splitmix.words import counted, listed

log = logging.getLogger("flwr.splitmix")

ROUNDS = "num-server-rounds"

_CHANGEABLE = {
    "attach-timeout", "step-timeout", "link-address", "link-advertise",
    "ssl-certfile", "ssl-keyfile", "ssl-ca-certfile", "link-client-ca", "link-via-token",
    "num-hosts", "host-gpus", "host-threads", "server-threads",
}  # fmt: skip
"""Keys that may change from start to start: waiting times, the server's address, processors."""


def continued(
    previous: Mapping[str, Any], overrides: Mapping[str, Any], run_id: str
) -> dict[str, Any]:
    """Return the configuration of a continued run; ignored keys are logged.

    Parameters
    ----------
    previous
        Configuration of the run so far.
    overrides
        Keys given for the continuation; all are ignored except a greater number of rounds, time
        limits, addresses, certificates, hosts and threads.
    run_id
        Id of the run, for the log.
    """
    config = dict(previous)
    ignored = [
        key
        for key, value in overrides.items()
        if key not in ABOUT_RESUMING and (key not in previous or previous[key] != value)
    ]
    if ROUNDS in ignored and _extends(previous.get(ROUNDS), overrides[ROUNDS]):
        ignored.remove(ROUNDS)
        config[ROUNDS] = overrides[ROUNDS]
        log.info(
            "run %s continues to round %d, beyond its %d", run_id, config[ROUNDS], previous[ROUNDS]
        )
    elif ROUNDS in ignored and type(overrides[ROUNDS]) is not int:
        ignored.remove(ROUNDS)
        config[ROUNDS] = overrides[ROUNDS]  # which is refused when it is read
    moved = [key for key in ignored if key in _CHANGEABLE]
    if moved:
        config |= {key: overrides[key] for key in moved}
        log.info("run %s continues with another %s", run_id, ", ".join(moved))
    if ignored := [key for key in ignored if key not in moved]:
        named = ", ".join(
            f"{key} is {previous.get(key)!r}, not {overrides[key]!r}" for key in ignored
        )
        log.warning(
            "run %s is continued as it was started, and ignores what is given now: %s. Only "
            "num-server-rounds may be raised, and time limits, addresses, certificates, hosts and "
            "threads changed",
            run_id,
            named,
        )
    return config


def check_is_of_app(run: Run, keys: Collection[str]) -> None:
    """Raise ConfigError if a run has keys that an app, which has `keys`, does not know."""
    if unknown := sorted(run.config.keys() - {*keys}):
        raise ConfigError(
            f"run {run.id} has keys that this app does not know "
            f"({listed(unknown, most=5)}): resume it with the app that began it"
        )


def check_can_continue(run: Run, kind: str, overrides: Mapping[str, Any]) -> None:
    """Check that a run is an app's and has something to continue.

    Parameters
    ----------
    kind
        The kind of the app.
    overrides
        Keys given for the continuation, as for `continued`.

    Raises
    ------
    ConfigError
        If the run is another app's.
    RunError
        If another process executes the run, or all of its rounds are finished.
    """
    if (other := kind_of_run(run.config)) not in (kind, "own"):
        raise ConfigError(
            f"run {run.id} is one of a {other} app, and this is a {kind} app: resume it with the "
            "app that began it"
        )
    run.check_free()
    rounds = run.config.get(ROUNDS)
    if _extends(rounds, overrides.get(ROUNDS)):
        rounds = overrides[ROUNDS]
    last = run.rows[-1]["round"] if run.rows else 0
    if run.status == "finished" and type(rounds) is int and last >= rounds:
        raise RunError(
            f"run {run.id} has finished its {counted(rounds, 'round')}: raise {ROUNDS} above "
            f"{rounds} with --run-config to continue it, or start a new run without resume"
        )


def note_of_ignored_values(
    previous: Mapping[str, Any], values: Mapping[str, Any], overrides: Mapping[str, Any]
) -> str:
    """Return a note of the app's values that a continued run ignores; "" if there are none.

    Parameters
    ----------
    previous
        Configuration of the run so far.
    values
        Whole run configuration now: that of `pyproject.toml`, with the given keys.
    overrides
        Keys given for the continuation; `continued` logs these.
    """
    differences = ", ".join(
        f"{key} is {previous[key]!r} (there {value!r})"
        for key, value in values.items()
        if key not in ABOUT_RESUMING
        and key not in overrides
        and key in previous
        and previous[key] != value
    )
    if not differences:
        return ""
    return (
        "the run continues with its own configuration, not with that of pyproject.toml: "
        f"{differences}"
    )


def _extends(rounds: Any, new_rounds: Any) -> bool:
    return type(rounds) is int and type(new_rounds) is int and new_rounds > rounds
