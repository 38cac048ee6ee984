"""The matrix as text: Markdown for the documentation, rows for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flwr_splitmix.experiments.privacy.kinds import Matrix, MatrixFact
from flwr_splitmix.experiments.privacy.matrices import IMAGES
from flwr_splitmix.experiments.privacy.results import NOT_APPLICABLE, Result
from flwr_splitmix.experiments.tables import grid
from flwr_splitmix.runs.reports.words import NOTHING

_ATTACKS = 5  # columns of attacks that fit into 200 characters with the others


@dataclass(frozen=True)
class Block:
    """A part of the matrix that fits on a page: methods as rows, a few attacks as columns."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def blocks(results: Sequence[Result], matrix: Matrix = IMAGES) -> list[Block]:
    """Return the matrix in blocks, with the facts of rows in the first."""
    methods = list(dict.fromkeys(result.method for result in results))
    attacks = _columns(results)
    matrix_blocks = []
    for first in range(0, max(1, len(attacks)), _ATTACKS):
        keys = attacks[first : first + _ATTACKS]
        facts = _facts(results, matrix) if first == 0 else {}
        headings = ["method", *facts, *(", ".join(key) for key in keys)]
        rows = [
            [
                method,
                *(values.get(method, NOTHING) for values in facts.values()),
                *_cells(method, keys, results, matrix),
            ]
            for method in methods
        ]
        matrix_blocks.append(Block(headings, rows))
    return matrix_blocks


def to_markdown(results: Sequence[Result], matrix: Matrix = IMAGES, note: str = "") -> str:
    """Return the matrix as tables in Markdown, followed by a note: by default the legend."""
    lines = [line for each in blocks(results, matrix) for line in grid(each.headings, each.rows)]
    return "\n".join([*lines, note or matrix.legend]) + "\n"


def _facts(results: Sequence[Result], matrix: Matrix) -> dict[str, dict[str, str]]:
    """Return, by heading, each method's fact; those that no method has are left out.

    If any method has several seeds, their number is a column, and scores have their range over
    them.
    """
    facts: dict[str, dict[str, str]] = {}
    seeds: dict[str, str] = {}
    for fact in matrix.facts:
        for result in results:
            states_fact = (result.attack, result.metric) == ("none", fact.metric)
            if states_fact and result.value is not None:
                facts.setdefault(fact.heading, {})[result.method] = _fact(fact, result)
                seeds[result.method] = str(result.seeds)
    return facts if set(seeds.values()) <= {"1"} else {"seeds": seeds, **facts}


def _fact(fact: MatrixFact, result: Result) -> str:
    assert result.value is not None
    assert result.low is not None
    assert result.high is not None
    mean, low, high = map(fact.as_text, (result.value, result.low, result.high))
    return f"{mean} [{low}, {high}]" if fact.is_score and low != high else mean


def _cells(
    method: str, keys: Sequence[tuple[str, str]], results: Sequence[Result], matrix: Matrix
) -> Iterator[str]:
    method_results = [result for result in results if result.method == method]
    for key in keys:
        yield _cell([r for r in method_results if (r.attack, r.adversary) == key], matrix)


def _columns(results: Sequence[Result]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((r.attack, r.adversary) for r in results if r.attack != "none"))


def _cell(results: Sequence[Result], matrix: Matrix) -> str:
    if not results:
        return NOTHING
    if results[0].metric == NOT_APPLICABLE:
        return "n/a"
    main = result_to_show(results, matrix)
    doubt = "" if main.passed_gate else " (?)"
    if main.stopped_after is not None:
        doubt += " (stopped)"
    between = f"[{number(main.low)}, {number(main.high)}]"
    return f"{number(main.value)} {between} / {number(main.floor)}{doubt}"


def result_to_show(results: Sequence[Result], matrix: Matrix = IMAGES) -> Result:
    """Return the result to show of an attack on a method: that of the first of the metrics."""
    return next((r for name in matrix.metrics for r in results if r.metric == name), results[0])


def number(value: float | None) -> str:
    """Return a number with three digits (two below 0.001), or "-" for None."""
    if value is None:
        return NOTHING
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3g}"
