"""The columns of a run's metrics and the keys of its summary, with their types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_splitmix.files.json_values import NOT_FINITE
from flwr_splitmix.runs.damage import read_object, unreadable

COLUMNS: dict[str, str | None] = {
    "round": "int64",
    "loss": "float64",
    "accuracy": "float64",
    "accuracy_kind": "string",
    "eval_loss": "float64",
    "seconds": "float64",
    "steps": "int64",
    "uplink_bytes": "int64",
    "downlink_bytes": "int64",
    "uplink_bytes_psl": "int64",
    "clients_alive": "int64",
    "clients_failed": "int64",
    "slowest_node": None,  # a client's index; in a user's own rows any name: typed by its values
    "steps_per_second": "float64",
}
"""The columns of every metrics file, with their Arrow types, which hold even if all are null."""

_FINITE = {
    "round", "rounds", "steps", "evaluated_round", "clients_alive", "clients_failed", "seconds",
    "wall_s", "uplink_bytes", "downlink_bytes", "uplink_bytes_psl",
}  # fmt: skip
_NUMBERS = {
    "loss", "top1", "accuracy", "accuracy_spread", "epsilon", "train_epsilon", "steps_per_second",
}  # fmt: skip
_WORDS = {"accuracy_kind", "evaluation", "privacy", "stopped", "epsilon_covers"}


def read_summary(path: Path) -> dict[str, Any]:
    """Read a run's summary; raise RunError as `read_object` and `check_types` do.

    The run's own numbers that are NaN or infinite are text in the file, and numbers here.
    """
    summary = {
        name: float(value) if value in NOT_FINITE and _is_number(name) else value
        for name, value in read_object(path).items()
    }
    check_types(path, summary)
    return summary


def _is_number(name: str) -> bool:
    return name in _NUMBERS - {"epsilon"} or name.startswith("eval_")


def check_types(path: Path, values: Mapping[str, Any]) -> None:
    """Check the types of the known keys of a summary, or of a row of metrics; None is allowed.

    Raises
    ------
    RunError
        If a value is of another type, or a count or a time is not finite.
    """
    for name, value in values.items():
        if value is None or (name == "epsilon" and value == "inf"):
            continue
        if name in _WORDS and not isinstance(value, str):
            raise unreadable(path, f"{name} is {value!r:.80}, which is not text")
        if name == "versions" and not isinstance(value, dict):
            raise unreadable(path, f"{name} is {value!r:.80}, which is not a JSON object")
        if name in _FINITE or name in _NUMBERS or name.startswith("eval_"):
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise unreadable(path, f"{name} is {value!r:.80}, which is not a number")
            too_large = isinstance(value, int) and abs(value) >= 2**63
            if too_large or (name in _FINITE and not math.isfinite(value)):
                raise unreadable(path, f"{name} is {value!r:.80}, which cannot be")
