"""Files of a run that cannot be read: errors with their remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr_splitmix.files.json_values import NOT_FINITE, unmarked
from flwr_splitmix.files.reading import read_json
from flwr_splitmix.runs.errors import RunError

_REMEDIES = {
    "begun.jsonl": "restore it; without it epsilon lacks what interrupted rounds have sent",
    "config.json": "restore it, or remove the run's folder",
    "failure.json": "remove it; it only says which error ended the run",
    "inputs.json": "restore it, or remove it if the data set is here: it is then read again",
    "metrics.jsonl": "restore it, or remove it: the newest rounds are then missing from tables",
    "metrics.parquet": "restore it, or remove it: the rounds so far are then missing from tables",
    "mixtures.json": "remove it; the report then shows no mixtures",
    "recording.json": "remove the folder that it is in, and record again (record-attacks)",
    "record.json": "remove it; the report then lacks the clients' times and the messages",
    "scores.json": "remove the folder that it is in, and run the attack again",
    "state-key": "restore it; nodes give the run its clients' states by no other key",
    "summary.json": "remove it: the run is then unfinished, and resuming it writes it again",
}


def unreadable(path: Path, reason: object, remedy: str = "") -> RunError:
    """Return the error of a file that cannot be read.

    The remedy is the given one, or else that for a run's file of this name.
    """
    if isinstance(reason, PermissionError):  # it is whole, but belongs to another user
        return RunError(f"cannot read {path}: {reason.strerror}; its owner may read it")
    remedy = remedy or _REMEDIES.get(path.name, "")
    return RunError(f"cannot read {path}: {reason}" + (f"; {remedy}" if remedy else ""))


def read_object(path: Path, remedy: str = "") -> dict[str, Any]:
    """Read a JSON object; for the remedy see `unreadable`.

    Raises
    ------
    RunError
        If the file cannot be read, or holds anything else.
    """
    try:
        value = read_json(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error, remedy) from error
    if not isinstance(value, dict):
        raise unreadable(path, "it holds no JSON object", remedy)
    return value


def read_config(path: Path) -> dict[str, Any]:
    """Read a run's configuration; raise RunError as `read_object` does.

    NaN and infinities, such as an `alpha`, are `marked` in the file; a text "inf" stays text.
    """
    try:
        config: dict[str, Any] = unmarked(read_object(path))
    except ValueError as error:
        raise unreadable(path, error) from error
    return config


def check_record(path: Path, record: Mapping[str, Any]) -> None:
    """Check the fields of a record's clients and messages, as their observers write them.

    Raises
    ------
    RunError
        If one is missing or of another type.
    """
    with damage_of(path):
        for client_record in record.get("clients", {}).values():
            _check_numbers(client_record, "rounds", "seconds", "slowest", "failed")
            for server_round, reason in client_record["failures"]:
                _check_numbers({"round": server_round}, "round")
                _check_texts(reason)
        for kind in record.get("messages", {}).get("kinds", []):
            _check_numbers(kind, "count", "bytes")
            _check_texts(kind["phase"], kind["direction"], *kind["holds"].values())


def check_mixtures(path: Path, kept: Mapping[str, Any]) -> None:
    """Check the mixtures kept by a run, as their observer writes them.

    Raises
    ------
    RunError
        If a field is missing, of another type, or does not fit the others.
    """
    with damage_of(path):
        _check_numbers(kept, "round")
        for mixture in kept["mixtures"]:
            _check_numbers(mixture, "rows", "columns")
            patches, norms = mixture["rows"] * mixture["columns"], mixture["norms"]
            _check_length(norms, patches, "norms")
            for norm in norms:
                if norm not in NOT_FINITE:  # as in a run that diverged
                    _check_numbers({"norm": norm}, "norm")
            for member in mixture["members"]:
                _check_numbers(member, "client", "lam")
                _check_length(member["patches"], patches, "patches")


@contextmanager
def damage_of(path: Path, remedy: str = "") -> Iterator[None]:
    """Raise an error about a file's values as that of an `unreadable` file."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise unreadable(path, reason, remedy) from error


def _check_numbers(values: Mapping[str, Any], *names: str) -> None:
    for name in names:
        value = values[name]
        if not isinstance(value, int | float) or not 0 <= value < 2**63:
            raise ValueError(f"{name} is {value!r:.80}, which is neither a count nor a time")


def _check_length(values: object, least: object, label: str) -> None:
    if not isinstance(least, int) or not isinstance(values, list) or len(values) < least:
        raise ValueError(f"there are no {least!r:.80} {label} in a list")


def _check_texts(*values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"{value!r:.80} is not text")
