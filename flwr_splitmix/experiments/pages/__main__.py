"""The command that keeps what was run, and makes the pages of it.

    python -m flwr_splitmix.experiments.pages --run-dir DIR

It takes the finished cells below DIR into the result files, `docs/results/data/*.json`, beside the
seeds that these have already, and renews the blocks of `docs/*.md` and `docs/results/*.md`:

- `<!-- table: NAME SCALE -->`, or `SCALE@DATASET`: an experiment's table and the paper's orderings;
- `<!-- experiments: PAPER -->`: all experiments of a paper, run or not;
- `<!-- overview: SCALE -->`: all papers, and how many orderings hold;
- those of the matrix of attacks, see `privacy.page`. Only these are made of the runs themselves: of
  one that DIR has nothing for stays what is there.

Without `--run-dir` the pages are made of the result files alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from flwr_splitmix.experiments.cell_runs import find_runs
from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.named import EXPERIMENTS, experiment_named
from flwr_splitmix.experiments.pages.blocks import END, Maker, renewed
from flwr_splitmix.experiments.pages.papers import experiments_block, overview_block
from flwr_splitmix.experiments.pages.result_files import (
    FOLDER,
    ResultFile,
    exported,
    read_results,
)
from flwr_splitmix.experiments.pages.table_block import not_run_block, table_block
from flwr_splitmix.experiments.privacy.page import KINDS, matrix_block
from flwr_splitmix.experiments.scales import scale_named


def keep_results(docs: Path, home: Path | None, scales: Iterable[str]) -> list[str]:
    """Take what was run into the result files; returns what was done, a line for each file.

    Results of cells that an experiment no longer has are taken out.

    Parameters
    ----------
    docs
        Folder of the pages.
    home
        Directory that holds runs/; None if there are none to be taken in.
    scales
        Whose runs are.

    Raises
    ------
    ExperimentError, RunError
        If a result file or a run cannot be read, or there is no such scale.
    OSError
        If a file cannot be written.
    """
    older = {result.name: result for result in read_results(docs / FOLDER)}
    runs = () if home is None else find_runs(home).values()
    newer = {
        result.name: result
        for result in exported(EXPERIMENTS.values(), map(scale_named, scales), runs)
    }
    said = []
    for name in sorted({*older, *newer}):
        old, new = older.get(name), newer.get(name)
        result = old.merged(new) if old and new else old or new
        assert result is not None
        file, text = docs / FOLDER / name, result.to_json()
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        said.append(f"{file}: {result.count} runs, {result.count - (old.count if old else 0)} new")
    return said


def renew_pages(docs: Path, home: Path | None) -> list[str]:
    """Renew the blocks of all pages; returns what was done and what was not, line by line.

    Parameters
    ----------
    docs
        Folder of the pages.
    home
        Directory that holds attacks/; None leaves the blocks of the matrix as they are.

    Raises
    ------
    ExperimentError
        If a block is none that can be made; the message names page and block.
    """
    results = read_results(docs / FOLDER)
    said = []
    for page in [*sorted(docs.glob("*.md")), *sorted((docs / "results").glob("*.md"))]:
        old = page.read_text(encoding="utf-8")
        if END not in old:
            continue
        try:
            new, kept = renewed(old, _makers(page, docs, results, home))
        except ExperimentError as error:
            raise ExperimentError(f"{page}: {error}") from error
        if new != old:
            page.write_text(new, encoding="utf-8")
            said.append(f"{page}: renewed")
        reason = "no run directory was given" if home is None else f"{home} has no results of it"
        said += [f"{page}: left as it is, {reason}: {block}" for block in kept]
    return said


def _makers(
    page: Path, docs: Path, results: Sequence[ResultFile], home: Path | None
) -> Mapping[str, Maker]:
    def table(words: str) -> str:
        name, _, where = words.partition(" ")
        scale, _, dataset = where.partition("@")
        experiment, size = experiment_named(name), scale_named(scale)
        tables = [
            table_block(result, os.path.relpath(docs / FOLDER / result.name, page.parent))
            for result in results
            if result.experiment.name == name and result.scale == size and result.count
            if dataset in ("", result.dataset)
        ]
        return "\n".join(tables) if tables else not_run_block(experiment, size)

    def of_matrix(kind: str, words: str) -> str | None:
        return None if home is None else matrix_block(kind, words, home)

    return {
        "table": table,
        "experiments": lambda paper: experiments_block(paper, results),
        "overview": lambda scale: overview_block(scale_named(scale), results),
        **{kind: partial(of_matrix, kind) for kind in KINDS},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Keep results and renew pages; `arguments` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m flwr_splitmix.experiments.pages")
    parser.add_argument("--run-dir", type=Path, help="where runs/ and attacks/ are; else none")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="the pages (docs)")
    parser.add_argument(
        "--scales", default="cpu,paper", help="whose runs are kept, separated by commas (cpu,paper)"
    )
    options = parser.parse_args(arguments)
    try:
        kept = keep_results(options.docs, options.run_dir, options.scales.split(","))
        for line in (*kept, *renew_pages(options.docs, options.run_dir)):
            print(line)
    except ExperimentError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
