"""The summary of a run: totals of its rows, its last evaluation, and what it ran with."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch

from flwr_splitmix.files.json_values import finite
from flwr_splitmix.runs.epsilon import epsilon_facts


def summarise(
    rows: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    *,
    evaluated: Mapping[str, Any],
    mixtures: bool,
    model: Any,
    seconds: float,
) -> dict[str, Any]:
    """Return a run's summary.

    Parameters
    ----------
    rows
        The metrics of its rounds.
    facts
        Further entries, such as the strategy's name.
    evaluated
        The columns of an evaluation after a last round that was lost, which has no row, with its
        round; empty if there was none.
    mixtures
        Whether the run's ledger counts mixtures, not each upload.
    model
        The model's name in the configuration; None if there is none.
    seconds
        Seconds that the run has taken.
    """
    measured = [row for row in (*rows, evaluated) if row.get("accuracy") is not None]
    last = max(measured, key=lambda row: row["round"], default={})
    return {
        "rounds": rows[-1]["round"] if rows else 0,
        "steps": sum(row["steps"] for row in rows),
        "top1": last.get("accuracy"),
        "evaluation": last.get("accuracy_kind"),
        "evaluated_round": last.get("round"),
        **{key: value for key, value in last.items() if key.startswith("eval_")},
        "loss": rows[-1]["loss"] if rows else None,
        **finite(epsilon_facts(rows[-1] if rows else {}, facts.get("strategy"), mixtures=mixtures)),
        "versions": {
            "python": platform.python_version(),
            "flwr": version("flwr"),
            "flwr-splitmix": version("flwr-splitmix"),
            "torch": torch.__version__,
        },
        **{
            key: sum(row[key] for row in rows)
            for key in ("uplink_bytes", "downlink_bytes", "uplink_bytes_psl")
        },
        **facts,
        "model": model,
        "wall_s": round(seconds, 3),
    }
