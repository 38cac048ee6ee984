"""Block of a page: the table of an experiment that trains, with the paper's orderings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flwr_splitmix.experiments.experiment import Ordering, Place
from flwr_splitmix.experiments.pages.commands import command
from flwr_splitmix.experiments.report import Claim, Table, TableLine
from flwr_splitmix.experiments.tables import (
    bound,
    grid,
    has_noise,
    papers_of,
    shown_margin,
    shown_scores,
    tally,
)
from flwr_splitmix.experiments.verdicts import common_seeds
from flwr_splitmix.runs.reports.words import NOTHING, number


def table_block(table: Table, versions: Mapping[str, Sequence[Place]], link: str) -> str:
    """Return a table with the command that makes it, and the verdicts on orderings.

    Parameters
    ----------
    versions
        Versions of this package with which it was run, and places that were run with each.
    link
        Link from the page to the result file.
    """
    made_with = ", ".join(versions)
    parts = [
        f"{table.experiment.source}: {table.experiment.title}. Scale `{table.scale.name}`, data "
        f"set {table.dataset}, {table.epochs} epochs"
        + (f", flwr-splitmix {made_with}" if made_with else "")
        + f" ([result file]({link})).",
        "",
        *command(table.experiment, table.scale, table.dataset, _seeds(table)),
        *grid(_headings(table), [_row(table, line) for line in table.lines if line.values]),
    ]
    parts += [line for sentence in _missing(table) for line in (sentence, "")]
    if len(versions) > 1:
        parts += [line for sentence in _made_with(versions) for line in (sentence, "")]
    if table.experiment.note:
        parts += [table.experiment.note, ""]
    if table.claims:
        parts += [f"The paper's orderings: {tally(table.claims)}.", ""]
        unit = ", points" if table.experiment.scores[0].factor == 100 else ""
        names = ("ordering", "here", f"margin{unit}", "seeds that agree")
        parts += grid(names, list(_claim_rows(table)))
    return "\n".join(parts)


def _seeds(table: Table) -> list[int]:
    return sorted({seed for line in table.lines for seed in line.seeds})


def _headings(table: Table) -> list[str]:
    first, *others = (score.name for score in table.experiment.scores)
    return [
        "method",
        "at",
        f"{first}, mean ± s.d. over seeds",
        "each seed",
        *others,
        *(f"paper, {name}" for name in papers_of(table)),
        *(("epsilon", "paper's epsilon") if has_noise(table) else ()),
        "MB up an epoch",
    ]


def _row(table: Table, line: TableLine) -> list[str]:
    scores = table.experiment.scores
    mean, *others = shown_scores(line, scores)
    each = ", ".join(number(value, scores[0].digits) for value in line.values)
    if list(line.seeds) != _seeds(table):
        each += f" (of {', '.join(map(str, line.seeds))})"
    return [
        line.entry.row,
        line.entry.column,
        mean,
        each,
        *others,
        *(number(line.entry.paper.get(name), 2) for name in papers_of(table)),
        *((bound(line.epsilon), bound(line.entry.epsilon)) if has_noise(table) else ()),
        NOTHING if line.uplink is None else number(line.uplink / 1e6, 2),
    ]


def _missing(table: Table) -> Iterator[str]:
    """Yield a sentence on places that were not run, and one on rows that are not offered."""
    can_run = [line for line in table.lines if line.entry.variant is not None]
    run_columns = {line.entry.column for line in can_run if line.values}
    empty = list(
        dict.fromkeys(e.entry.column for e in can_run if e.entry.column not in run_columns)
    )
    by_row: dict[str, list[str]] = {}
    for line in can_run:
        if not line.values and line.entry.column in run_columns:
            by_row.setdefault(line.entry.row, []).append(line.entry.column)
    by_columns: dict[str, list[str]] = {}
    for row, columns in by_row.items():
        by_columns.setdefault(", ".join(columns), []).append(f"*{row}*")
    omissions = [f"every method at {', '.join(empty)}"] if empty else []
    omissions += [f"{', '.join(rows)} at {columns}" for columns, rows in by_columns.items()]
    if omissions:
        yield f"Not run: {'; '.join(omissions)}."
    rows = dict.fromkeys(line.entry.row for line in table.lines if line.entry.variant is None)
    if rows:
        yield f"Not offered here: {', '.join(rows)}."


def _made_with(versions: Mapping[str, Sequence[Place]]) -> Iterator[str]:
    """Yield a sentence for each version but the first, on the places that were run with it."""
    for version in list(versions)[1:]:
        by_row: dict[str, list[str]] = {}
        for row, column in versions[version]:
            by_row.setdefault(row, []).append(column)
        named = "; ".join(f"*{row}* at {', '.join(columns)}" for row, columns in by_row.items())
        yield f"Made with flwr-splitmix {version}, at least one seed: {named}."


def _claim_rows(table: Table) -> Iterator[list[str]]:
    """Yield a row for each ordering; orderings not run share one row for all their columns."""
    waiting: dict[tuple[str, str, str, float], list[Ordering]] = {}
    for claim in table.claims:
        ordering = claim.ordering
        if claim.margin is not None:
            yield [str(ordering), claim.verdict, shown_margin(claim), _agreeing(table, claim)]
            continue
        (low, low_column), (high, high_column) = ordering.low, ordering.high
        other = f"{ordering.measure} of {high}" if low_column == high_column else str(ordering)
        key = (low, other, claim.verdict, ordering.slack)
        waiting.setdefault(key, []).append(ordering)
    for (_, _, verdict, _), orderings in waiting.items():
        columns = ", ".join(ordering.low[1] for ordering in orderings)
        label = str(orderings[0])
        if len(orderings) > 1:
            label = label.removesuffix(f"({orderings[0].low[1]})") + f"({columns})"
        yield [label, verdict, NOTHING, NOTHING]


def _agreeing(table: Table, claim: Claim) -> str:
    """Return the share of the seeds at both places for which the ordering holds: "2 of 3"."""
    if claim.ordering.measure == "uplink":
        return NOTHING
    by_place = {line.entry.place: line.by_seed() for line in table.lines}
    low, high = by_place[claim.ordering.low], by_place[claim.ordering.high]
    seeds = common_seeds(low, high)
    if not seeds:
        return "none in common"
    agreeing = [low[seed] < high[seed] + claim.ordering.slack for seed in seeds]
    return f"{sum(agreeing)} of {len(seeds)}"
