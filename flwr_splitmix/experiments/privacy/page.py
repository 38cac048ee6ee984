"""Blocks of documentation pages with the matrix, written from the cells that were run.

`python -m flwr_splitmix.experiments.pages` inserts them. In a block `<!-- KIND: SCALE CELLS -->`,
the kind is `matrix`, `findings` or `holding`, and CELLS is a value of `--cells`. `SCALE@FOLDER`
selects another data set than the scale's, and `texts:SCALE` the matrix of texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flwr_splitmix.experiments.privacy.cells import Place, choose
from flwr_splitmix.experiments.privacy.holding import holding
from flwr_splitmix.experiments.privacy.kinds import Matrix
from flwr_splitmix.experiments.privacy.matrices import IMAGES, MATRICES
from flwr_splitmix.experiments.privacy.results import Result, results
from flwr_splitmix.experiments.privacy.tables import number, result_to_show, to_markdown

KINDS = ("matrix", "findings", "holding")
"""Kinds of blocks."""

_GOALS = {
    "MSE": "images are rebuilt",
    "patches in place": "the order of patches is found",
    "patches attributed": "patches of a mixture are given to their owners",
    "labels read": "labels are read",
    "token accuracy": "words are read",
    "AUC": "",
}


def matrix_block(kind: str, words: str, home: Path | None) -> str | None:
    """Return the content of a block of one of the `KINDS`; None if none of its cells was run.

    Parameters
    ----------
    words
        The text after the kind: scale and cells.
    home
        Parent directory of attacks/; None for the environment's SPLITMIX_HOME, else ~/.splitmix.

    Raises
    ------
    ExperimentError
        If there is no such scale, row or attack.
    KeyError
        If there is no such matrix.
    """
    where, _, selection = words.partition(" ")
    scale, _, source = where.partition("@")
    name, _, scale = scale.rpartition(":")
    matrix = MATRICES[name or IMAGES.name]
    size = matrix.size(scale)
    place = Place(home, size, source or size.source)
    cells = [
        cell for cell in choose(selection, place.seeds, matrix) if cell.result(place) is not None
    ]
    if not cells:
        return None
    cell_results = results(cells, place)
    if kind == "holding":
        return holding(cell_results, matrix)
    if kind == "matrix":
        return to_markdown(cell_results, matrix, matrix.guide)
    return findings(cell_results, matrix)


def findings(results: Sequence[Result], matrix: Matrix = IMAGES) -> str:
    """Return a line per method with, for each goal, the strongest attack that counts and its cell.

    The strongest attack is the one furthest beyond its floor, relative to the floor.
    """
    lines = []
    for method in dict.fromkeys(result.method for result in results):
        method_results = [r for r in results if r.method == method and r.attack != "none"]
        main = [
            result_to_show([r for r in method_results if (r.attack, r.adversary) == key], matrix)
            for key in dict.fromkeys((r.attack, r.adversary) for r in method_results)
        ]
        sentences = [
            _sentence(best)
            for goal in _kinds(main)
            if (best := _strongest([r for r in main if _kind(r) == goal])) is not None
        ]
        lines.append(f"- `{method}`: {'; '.join(sentences) or 'nothing that counts was run'}.")
    return "\n".join(lines) + "\n"


def _kind(result: Result) -> str:
    return f"AUC of {result.attack.split()[0]}" if result.metric == "AUC" else result.metric


def _kinds(main: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(_kind(r) for r in main if r.value is not None))


def _strongest(rivals: Sequence[Result]) -> Result | None:
    counted = [r for r in rivals if r.passed_gate and r.value is not None and r.floor]
    return max(counted, key=_beyond, default=None)


def _beyond(result: Result) -> float:
    assert result.value is not None
    assert result.floor
    beyond = result.value / result.floor - 1
    return -beyond if result.metric == "MSE" else beyond


def _is_beyond(result: Result) -> bool:
    """Return whether the whole confidence interval is beyond the floor."""
    assert result.low is not None
    assert result.high is not None
    assert result.floor
    return result.high < result.floor if result.metric == "MSE" else result.low > result.floor


def _sentence(result: Result) -> str:
    statement = _GOALS.get(result.metric) or f"{result.attack.split()[0]} is told"
    beats = "" if _is_beyond(result) else ", no better than without the releases"
    cell = f"`{result.method}:{result.attack}` of the adversary {result.adversary}"
    between = f"[{number(result.low)}, {number(result.high)}]"
    return (
        f"{statement} with {result.metric} {number(result.value)} {between}, floor "
        f"{number(result.floor)}{beats} ({cell})"
    )
