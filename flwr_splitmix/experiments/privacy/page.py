"""Pages with the matrix in them: tables and findings are written from the cells that were run.

    python -m flwr_splitmix.experiments.privacy.page docs/attacks.md docs/results.md --run-dir DIR

A block stands between `<!-- matrix: SCALE CELLS -->`, `<!-- findings: SCALE CELLS -->`,
`<!-- holding: SCALE CELLS -->` or `<!-- experiment: SCALE NAME -->`, and `<!-- end of block -->`;
CELLS is as for `--cells`, and `SCALE@FOLDER` names another data set than the scale's, `texts:SCALE`
the matrix of texts.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from flwr_splitmix.experiments.privacy.cells import Place, choose
from flwr_splitmix.experiments.privacy.holding import holding
from flwr_splitmix.experiments.privacy.kinds import Matrix
from flwr_splitmix.experiments.privacy.matrices import IMAGES, MATRICES
from flwr_splitmix.experiments.privacy.named import PRIVACY_EXPERIMENTS
from flwr_splitmix.experiments.privacy.results import Result, results
from flwr_splitmix.experiments.privacy.tables import number, shown, to_markdown
from flwr_splitmix.experiments.privacy.tables_of_papers import make_table
from flwr_splitmix.experiments.privacy.tables_of_papers import to_markdown as experiment_markdown

_BLOCK = re.compile(
    r"(<!-- (matrix|findings|holding|experiment): (\S+) (.*?) -->\n)(.*?)(<!-- end of block -->)",
    re.DOTALL,
)
_SEEDS = range(100)

_GOALS = {
    "MSE": "images are rebuilt",
    "patches in place": "the order of patches is found",
    "patches attributed": "patches of a mixture are given to their owners",
    "labels read": "labels are read",
    "token accuracy": "words are read",
    "AUC": "",
}


def renewed(page: str, home: Path | None) -> str:
    """Return a page with its blocks as the cells below a directory have them."""

    def block(match: re.Match[str]) -> str:
        begin, kind, where, what, _, end = match.groups()
        return f"{begin}\n{_made(kind, where, what, home)}\n{end}"

    return _BLOCK.sub(block, page)


def _made(kind: str, where: str, what: str, home: Path | None) -> str:
    scale, _, source = where.partition("@")
    name, _, scale = scale.rpartition(":")
    matrix = MATRICES[name or IMAGES.name]
    size = matrix.size(scale)
    place = Place(home, size, source or size.source)
    if kind == "experiment":
        return experiment_markdown(make_table(PRIVACY_EXPERIMENTS[what], place, _SEEDS))
    cells = choose(what, list(_SEEDS), matrix)
    made = results([cell for cell in cells if cell.result(place) is not None], place)
    if kind == "holding":
        return holding(made, matrix) + "\n"
    return to_markdown(made, matrix) if kind == "matrix" else findings(made, matrix)


def findings(made: Sequence[Result], matrix: Matrix = IMAGES) -> str:
    """Return a sentence for each method and goal: the strongest attack that counts, and its cell.

    The strongest is the one that is furthest beyond its floor, as a fraction of the floor.
    """
    lines = []
    for method in dict.fromkeys(result.method for result in made):
        own = [r for r in made if r.method == method and r.attack != "none"]
        main = [
            shown([r for r in own if (r.attack, r.adversary) == key], matrix)
            for key in dict.fromkeys((r.attack, r.adversary) for r in own)
        ]
        said = [
            _sentence(best)
            for goal in _kinds(main)
            if (best := _strongest([r for r in main if _kind(r) == goal])) is not None
        ]
        lines.append(f"- `{method}`: {'; '.join(said) or 'nothing that counts was run'}.")
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
    """Return whether the whole interval is beyond the floor."""
    assert result.low is not None
    assert result.high is not None
    assert result.floor
    return result.high < result.floor if result.metric == "MSE" else result.low > result.floor


def _sentence(result: Result) -> str:
    what = _GOALS.get(result.metric) or f"{result.attack.split()[0]} is told"
    beats = "" if _is_beyond(result) else ", no better than without the releases"
    cell = f"`{result.method}:{result.attack}` of the adversary {result.adversary}"
    between = f"[{number(result.low)}, {number(result.high)}]"
    return (
        f"{what} with {result.metric} {number(result.value)} {between}, floor "
        f"{number(result.floor)}{beats} ({cell})"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Renew pages; `arguments` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m flwr_splitmix.experiments.privacy.page")
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--run-dir", type=Path, default=None)
    options = parser.parse_args(arguments)
    for page in options.pages:
        text = page.read_text(encoding="utf-8")
        page.write_text(renewed(text, options.run_dir), encoding="utf-8")


if __name__ == "__main__":
    main()
