"""The matrix as text: Markdown for the documentation, rows for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flwr_splitmix.experiments.privacy.results import NOT_APPLICABLE, Result

NOTHING = "-"
_ATTACKS = 5  # columns of attacks that fit 200 characters beside the others
MAIN = ("MSE", "patches in place", "patches attributed", "labels read", "AUC")
"""The metric that a table shows of each attack: the first of these that it has."""

LEGEND = (
    "Of attacks that rebuild images the mean squared error per pixel is shown, pixels from 0 to 1: "
    "the higher, the better hidden. Of all others it is what they find, the higher, the worse "
    "hidden. In brackets the interval of 95 %; behind the slash the floor, which an attacker "
    "reaches without the victim's releases. n/a: the adversary lacks what the attack needs, which "
    "does not make the method safe. (?): the attack did not beat its floor on the unprotected "
    "method either, so that it says nothing."
)


@dataclass(frozen=True)
class Block:
    """A part of the matrix that fits a page: a method a row, a few attacks as columns."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def blocks(results: Sequence[Result]) -> list[Block]:
    """Return the matrix in blocks: accuracy and bytes in the first, attacks in all."""
    methods = list(dict.fromkeys(result.method for result in results))
    attacks = _columns(results)
    made = []
    for first in range(0, max(1, len(attacks)), _ATTACKS):
        keys = attacks[first : first + _ATTACKS]
        facts = ["top-1", "uplink/epoch"] if first == 0 else []
        headings = ["method", *facts, *(", ".join(key) for key in keys)]
        rows = [
            [method, *(_facts(method, results) if facts else ()), *_cells(method, keys, results)]
            for method in methods
        ]
        made.append(Block(headings, rows))
    return made


def to_markdown(results: Sequence[Result]) -> str:
    """Return the matrix as tables, and the legend."""
    made = []
    for block in blocks(results):
        lines = [block.headings, ["---"] * len(block.headings), *block.rows]
        made.append("\n".join("| " + " | ".join(cells) + " |" for cells in lines))
    return "\n\n".join([*made, LEGEND]) + "\n"


def _facts(method: str, results: Sequence[Result]) -> tuple[str, str]:
    facts = {r.metric: r.value for r in results if r.method == method and r.attack == "none"}
    top1, uplink = facts.get("top-1"), facts.get("uplink bytes of an epoch")
    return (
        NOTHING if top1 is None else f"{100 * top1:.1f} %",
        NOTHING if uplink is None else f"{uplink / 1e6:.1f} MB",
    )


def _cells(
    method: str, keys: Sequence[tuple[str, str]], results: Sequence[Result]
) -> Iterator[str]:
    own = [result for result in results if result.method == method]
    for key in keys:
        yield _cell([result for result in own if (result.attack, result.adversary) == key])


def _columns(results: Sequence[Result]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((r.attack, r.adversary) for r in results if r.attack != "none"))


def _cell(own: Sequence[Result]) -> str:
    if not own:
        return NOTHING
    if own[0].metric == NOT_APPLICABLE:
        return "n/a"
    main = shown(own)
    doubt = "" if main.passed_gate else " (?)"
    between = f"[{number(main.low)}, {number(main.high)}]"
    return f"{number(main.value)} {between} / {number(main.floor)}{doubt}"


def shown(own: Sequence[Result]) -> Result:
    """Return the metric of an attack on a method that a table shows."""
    return next((r for name in MAIN for r in own if r.metric == name), own[0])


def number(value: float | None) -> str:
    """Return a number in three digits, or "-" for None."""
    if value is None:
        return NOTHING
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3g}"
