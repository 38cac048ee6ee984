"""Reports as rows of text, as Markdown and as JSON."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from flwr_splitmix.experiments.experiment import TableScore
from flwr_splitmix.experiments.report import Claim, Table, TableLine
from flwr_splitmix.experiments.verdicts import Verdict
from flwr_splitmix.runs.reports.words import NOTHING, number
from flwr_splitmix.words import epsilon_text


def headings(table: Table) -> list[str]:
    """Return the column names of `rows`, with one column for each of the paper's data sets."""
    papers = [f"paper, {name}" for name in papers_of(table)]
    noise = ["epsilon", "paper's epsilon"] if has_noise(table) else []
    first, *others = (score.name for score in table.experiment.scores)
    shown = ["method", "at", first, *others, "seeds"]
    return [*shown, *papers, *noise, "uplink/epoch", "downlink/epoch"]


def rows(table: Table) -> list[list[str]]:
    """Return the table's lines as text, one list per line."""
    return [
        [
            line.entry.row,
            line.entry.column,
            *shown_scores(line, table.experiment.scores),
            line.state,
            *(number(line.entry.paper.get(name), 2) for name in papers_of(table)),
            *([bound(line.epsilon), bound(line.entry.epsilon)] if has_noise(table) else []),
            _megabytes(line.uplink),
            _megabytes(line.downlink),
        ]
        for line in table.lines
    ]


COST_HEADINGS = (
    "method",
    "at",
    "parameters",
    "optimizer",
    "activations",
    "MMACs forward",
    "MMACs training",
)
"""Column names of `cost_rows`: memory in MB, multiply-adds in millions per sample."""


def cost_rows(table: Table) -> list[list[str]]:
    """Return a client's costs for each line that was run; lines with equal costs are merged."""
    merged: dict[tuple[str, ...], list[str]] = {}
    for line in table.lines:
        if line.client is not None:
            key = (
                line.entry.column,
                _megabytes(line.client["parameter_bytes"]),
                _megabytes(line.client["optimizer_bytes"]),
                _megabytes(line.client["activation_bytes"]),
                number(line.client["forward_macs"] / 1e6, 2),
                number(line.client["training_macs"] / 1e6, 2),
            )
            merged.setdefault(key, []).append(line.entry.row)
    return [[", ".join(methods), *key] for key, methods in merged.items()]


def claim_rows(claims: Sequence[Claim]) -> list[list[str]]:
    """Return the claims as text: ordering, verdict, margin."""
    return [[str(claim.ordering), claim.verdict, shown_margin(claim)] for claim in claims]


def shown_scores(line: TableLine, scores: Sequence[TableScore]) -> list[str]:
    """Return the mean of each score, with its standard deviation if known: "72.41 ± 0.53"."""
    by_score = zip(scores, (line.values, *line.further), strict=True) if line.further else ()
    shown = {score.name: _mean(values, score.digits) for score, values in by_score}
    shown.setdefault(scores[0].name, _mean(line.values, scores[0].digits))
    return [shown.get(score.name, NOTHING) for score in scores]


def _mean(values: Sequence[float], digits: int) -> str:
    if not values:
        return NOTHING
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def tally(claims: Sequence[Claim]) -> str:
    """Return the counts of the claims' verdicts: "12 agree, 3 disagree, 2 not run"."""
    return counted(claim.verdict for claim in claims)


_VERDICTS: dict[Verdict, str] = {
    "agrees": "agree",
    "disagrees": "disagree",
    "not run": "not run",
    "not offered": "not offered",
}


def counted(verdicts: Iterable[str]) -> str:
    """Return the counts of verdicts: "12 agree, 3 disagree, 2 not run"."""
    counts = Counter(verdicts)
    return ", ".join(f"{counts[name]} {word}" for name, word in _VERDICTS.items() if counts[name])


def title(table: Table) -> str:
    """Return a table's title: experiment, source, scale, data set and epochs."""
    return (
        f"{table.experiment.name}: {table.experiment.title} ({table.experiment.source}); scale "
        f"{table.scale.name}, {table.dataset}, {table.epochs} epochs"
    )


def to_markdown(tables: Sequence[Table]) -> str:
    """Return the tables in Markdown."""
    parts = []
    for table in tables:
        parts += [f"### {title(table)}", ""]
        parts += grid(headings(table), rows(table))
        if table.experiment.note:
            parts += [table.experiment.note, ""]
        if costs := cost_rows(table):
            parts += ["What one client needs (MB of 10^6 bytes; multiply-adds per sample):", ""]
            parts += grid(COST_HEADINGS, costs)
        if table.claims:
            parts += [f"The paper's orderings: {tally(table.claims)}.", ""]
            parts += grid(("ordering", "here", "margin"), claim_rows(table.claims))
    return "\n".join(parts).rstrip() + "\n"


def to_json(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Return the tables as plain values."""
    return [
        {
            "experiment": table.experiment.name,
            "title": table.experiment.title,
            "source": table.experiment.source,
            "note": table.experiment.note,
            "scale": table.scale.name,
            "dataset": table.dataset,
            "epochs": table.epochs,
            "scores": [score.name for score in table.experiment.scores],
            "lines": [_line_json(line) for line in table.lines],
            "orderings": [
                {
                    "low": list(claim.ordering.low),
                    "high": list(claim.ordering.high),
                    "measure": claim.ordering.measure,
                    "verdict": claim.verdict,
                    "margin": claim.margin,
                }
                for claim in table.claims
            ],
        }
        for table in tables
    ]


def _line_json(line: TableLine) -> dict[str, Any]:
    run = line.entry.variant
    return {
        "row": line.entry.row,
        "column": line.entry.column,
        "method": run.method if run else None,
        "options": dict(run.options) if run else {},
        "paper": dict(line.entry.paper),
        "seeds": list(line.seeds),
        "values": list(line.values),
        "mean": line.mean,
        "spread": line.spread,
        "further_scores": [list(values) for values in line.further],
        "epsilon": str(line.epsilon) if line.epsilon == math.inf else line.epsilon,
        "paper_epsilon": line.entry.epsilon,
        "begun": line.begun,
        "uplink_bytes_per_epoch": line.uplink,
        "downlink_bytes_per_epoch": line.downlink,
        "client_costs": dict(line.client) if line.client else None,
    }


def grid(names: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines in Markdown, followed by an empty line."""
    rows = [names, ["---"] * len(names), *lines]
    return [*("| " + " | ".join(cells) + " |" for cells in rows), ""]


def has_noise(table: Table) -> bool:
    """Return whether any line has an epsilon, measured or the paper's."""
    return any(line.epsilon is not None or line.entry.epsilon is not None for line in table.lines)


def bound(epsilon: float | None) -> str:
    """Return an epsilon as text: "none" if it is infinite, `NOTHING` if it is None."""
    if epsilon is None:
        return NOTHING
    return "none" if epsilon == math.inf else epsilon_text(epsilon)


def papers_of(table: Table) -> list[str]:
    """Return the data sets for which the paper has numbers."""
    return list(dict.fromkeys(name for line in table.lines for name in line.entry.paper))


def shown_margin(claim: Claim) -> str:
    """Return a claim's margin as text, in MB for uplinks, else in the score's units."""
    if claim.margin is None:
        return NOTHING
    if claim.ordering.measure == "uplink":
        return f"{claim.margin / 1e6:+.2f} MB"
    return f"{claim.margin:+.2f}"


def _megabytes(value: float | None) -> str:
    return NOTHING if value is None else f"{value / 1e6:.2f} MB"
