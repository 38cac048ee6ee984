"""The facts of a run: its summary, or as much of one as the finished rounds give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flwr_splitmix.runs.epsilon import counts_mixtures, epsilon_facts, epsilon_of
from flwr_splitmix.runs.metrics_file import Row
from flwr_splitmix.runs.run import Run
from flwr_splitmix.words import epsilon_text

TOTALS = ("steps", "uplink_bytes", "downlink_bytes", "uplink_bytes_psl")


def facts_of(run: Run) -> Row:
    """Return a run's facts by their names in a summary; facts never measured are missing.

    Raises
    ------
    RunError
        If a file of the run cannot be read.
    """
    configured = {name: run.config.get(name) for name in ("strategy", "model", "clients", "seed")}
    summary = run.summary
    if summary is None and configured["clients"] is None:
        configured["clients"] = _took_part(run)
    measured = {name: value for name, value in (summary or {}).items() if value is not None}
    facts = {**configured, **measured}
    return {**so_far(run.rows, facts["strategy"], mixtures=counts_mixtures(run.config)), **facts}


def _took_part(run: Run) -> int | None:
    """Return how many clients began one of the finished rounds; None if there is none."""
    last = run.rows[-1]["round"] if run.rows else 0
    trained = (begun for begun in run.begun if not begun.evaluates and begun.round <= last)
    return len({client for begun in trained for client in begun.clients}) or None


def so_far(rows: Sequence[Row], strategy: Any, *, mixtures: bool) -> Row:
    """Return a summary's entries for the finished rounds of a run of this strategy.

    Parameters
    ----------
    mixtures
        As for `epsilon_facts`.
    """
    facts: Row = {}
    for name in TOTALS:
        _put(facts, name, [row[name] for row in rows], total=True)
    _put(facts, "wall_s", [row["seconds"] for row in rows], total=True)
    _put(facts, "top1", [row["accuracy"] for row in rows])
    _put(facts, "evaluation", [row["accuracy_kind"] for row in rows])
    _put(facts, "loss", [row["loss"] for row in rows])
    if spent := [row for row in rows if epsilon_of(row) is not None]:
        facts |= epsilon_facts(spent[-1], strategy, mixtures=mixtures)
    if evaluated := [row for row in rows if row["accuracy"] is not None]:
        last = evaluated[-1]
        facts["evaluated_round"] = last["round"]
        facts |= {
            name: value
            for name, value in last.items()
            if name.startswith("eval_") and value is not None
        }
    return facts


def _put(facts: Row, name: str, values: Sequence[Any], *, total: bool = False) -> None:
    measured = [value for value in values if value is not None]
    if measured:
        facts[name] = sum(measured) if total else measured[-1]


def rounds_of(run: Run) -> str:
    """Return the number of rounds done, with the number requested if known: "3/28"."""
    finished = str(run.rows[-1]["round"] if run.rows else 0)
    requested = run.config.get("num-server-rounds")
    return finished if requested is None else f"{finished}/{requested}"


def epsilon_in_words(facts: Row, delta: Any) -> str:
    """Return the epsilon of a run's facts with what it covers, in words.

    For example "8.1 at delta 1e-05, the largest of the clients; it covers ...", or "no bound".
    """
    epsilon = float(facts["epsilon"])
    if not math.isfinite(epsilon):
        return "no bound"
    at = f" at delta {delta:g}" if isinstance(delta, float) else ""
    covers = f"; it covers {covered}" if (covered := facts.get("epsilon_covers")) else ""
    return f"{epsilon_text(epsilon)}{at}, the largest of the clients{covers}"
