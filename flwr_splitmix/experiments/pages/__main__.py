"""Command that stores the results of runs in files, and generates the pages from them.

    python -m flwr_splitmix.experiments.pages --run-dir DIR

It adds the finished cells in DIR, of training and of attacks, to the result files,
`docs/results/data/*.json`, keeps the seeds already stored there, and renews the blocks of
`docs/*.md` and `docs/results/*.md`:

- `<!-- table: NAME SCALE -->`, or `SCALE@DATASET`: an experiment's table and the paper's orderings;
- `<!-- experiments: PAPER -->`: all experiments of a paper, run or not;
- `<!-- overview: SCALE -->`: all papers, and how many orderings hold;
- with `--matrices`, blocks of the matrix of attacks, see `privacy.page`. Only these are generated
  from the runs themselves: DIR must have all cells of a block, since what it has replaces what
  stood there. A block for which DIR has no results stays as it is.

Without `--run-dir`, pages are generated from the result files alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.named import experiment_named
from flwr_splitmix.experiments.pages.blocks import END, Maker, renewed
from flwr_splitmix.experiments.pages.commands import not_run_block
from flwr_splitmix.experiments.pages.papers import experiments_block, overview_block
from flwr_splitmix.experiments.pages.result_files import FOLDER, keep_results, read_results
from flwr_splitmix.experiments.pages.results import Results
from flwr_splitmix.experiments.privacy.matrices import IMAGES
from flwr_splitmix.experiments.privacy.named import PRIVACY_EXPERIMENTS
from flwr_splitmix.experiments.privacy.page import KINDS, matrix_block
from flwr_splitmix.experiments.scales import scale_named
from flwr_splitmix.runs import RunError


def renew_pages(docs: Path, home: Path | None) -> list[str]:
    """Renew the blocks of all pages; return lines on what was done and what was not.

    Parameters
    ----------
    docs
        Folder of the pages.
    home
        Directory that holds attacks/, with all cells of the matrix's blocks; None leaves these as
        they are.

    Raises
    ------
    ExperimentError
        If a block cannot be made; the message names the page.
    """
    results = read_results(docs / FOLDER)
    lines = []
    for page in [*sorted(docs.glob("*.md")), *sorted((docs / "results").glob("*.md"))]:
        old = page.read_text(encoding="utf-8")
        if END not in old:
            continue
        try:
            new, unchanged = renewed(old, _makers(page, docs, results, home))
        except ExperimentError as error:
            raise ExperimentError(f"{page}: {error}") from error
        if new != old:
            page.write_text(new, encoding="utf-8")
            lines.append(f"{page}: renewed")
        reason = "--matrices is not given" if home is None else f"{home} has no results of it"
        lines += [f"{page}: left as it is, {reason}: {block}" for block in unchanged]
    return lines


def _makers(
    page: Path, docs: Path, results: Sequence[Results[Any]], home: Path | None
) -> Mapping[str, Maker]:
    def table(words: str) -> str:
        name, _, where = words.partition(" ")
        scale, _, dataset = where.partition("@")
        tables = [
            result.block(os.path.relpath(docs / FOLDER / result.name, page.parent))
            for result in results
            if (result.experiment.name, result.scale.name) == (name, scale) and result.count
            if dataset in ("", result.dataset)
        ]
        if tables:
            return "\n".join(tables)
        if name in PRIVACY_EXPERIMENTS:
            return not_run_block(PRIVACY_EXPERIMENTS[name], IMAGES.size(scale))
        return not_run_block(experiment_named(name), scale_named(scale))

    def of_matrix(kind: str, words: str) -> str | None:
        return None if home is None else matrix_block(kind, words, home)

    return {
        "table": table,
        "experiments": lambda paper: experiments_block(paper, results),
        "overview": lambda scale: overview_block(scale_named(scale), results),
        **{kind: partial(of_matrix, kind) for kind in KINDS},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Store results and renew pages; `arguments` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m flwr_splitmix.experiments.pages")
    parser.add_argument("--run-dir", type=Path, help="where runs/ and attacks/ are; else none")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="the pages (docs)")
    parser.add_argument(
        "--scales", default="cpu,paper", help="whose runs are kept, separated by commas (cpu,paper)"
    )
    parser.add_argument(
        "--matrices", action="store_true", help="replace the matrix of attacks by DIR's, too"
    )
    options = parser.parse_args(arguments)
    if options.matrices and options.run_dir is None:
        parser.error("--matrices takes the matrix of attacks from --run-dir DIR: name it, too")
    try:
        result_lines = keep_results(options.docs, options.run_dir, options.scales.split(","))
        for line in (
            *result_lines,
            *renew_pages(options.docs, options.run_dir if options.matrices else None),
        ):
            print(line)
    except RunError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
