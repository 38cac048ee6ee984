"""The matrix as text: Markdown for the documentation, rows for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_splitmix.experiments.privacy.results import NOT_APPLICABLE, Result

NOTHING = "-"
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


def headings(results: Sequence[Result]) -> list[str]:
    """Return the columns' names: the method, what it costs, and each attack with its adversary."""
    return ["method", "top-1", "uplink/epoch", *(", ".join(key) for key in _columns(results))]


def rows(results: Sequence[Result]) -> list[list[str]]:
    """Return a line for each method."""
    methods = list(dict.fromkeys(result.method for result in results))
    return [_row(method, results) for method in methods]


def to_markdown(results: Sequence[Result]) -> str:
    """Return the matrix turned round: an attack a line, a method a column, and the legend."""
    head = ["attack, adversary", *dict.fromkeys(result.method for result in results)]
    made = [head, ["---"] * len(head), *turned(results)]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in made)
    return f"{text}\n\n{LEGEND}\n"


def turned(results: Sequence[Result]) -> list[list[str]]:
    """Return a line for accuracy, bytes and each attack, with a column for each method."""
    names, lines = headings(results), rows(results)
    return [[name, *(line[i] for line in lines)] for i, name in enumerate(names)][1:]


def _row(method: str, results: Sequence[Result]) -> list[str]:
    own = [result for result in results if result.method == method]
    facts = {result.metric: result.value for result in own if result.attack == "none"}
    top1, uplink = facts.get("top-1"), facts.get("uplink bytes of an epoch")
    return [
        method,
        NOTHING if top1 is None else f"{100 * top1:.1f} %",
        NOTHING if uplink is None else f"{uplink / 1e6:.1f} MB",
        *(_cell([r for r in own if (r.attack, r.adversary) == key]) for key in _columns(results)),
    ]


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
