"""The pages' command: finished runs become result files and pages; committed pages are current."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.experiments import experiment_named
from flwr_splitmix.experiments.cell_runs import clear, held_run
from flwr_splitmix.experiments.pages import __main__ as pages
from flwr_splitmix.experiments.pages.__main__ import main, renew_pages
from flwr_splitmix.experiments.pages.papers import PAGES, paper_of
from flwr_splitmix.experiments.pages.result_files import (
    FOLDER,
    every_experiment,
    keep_results,
    read_results,
)
from flwr_splitmix.experiments.pages.results import AnyExperiment, Results
from flwr_splitmix.experiments.running import run_cell
from tests.experiments.pages.toy import SMALL, SMOKE, finish, toy

__all__ = ["toy"]

DOCS = Path(__file__).parents[3] / "docs"


def page_of(tmp_path: Path, *blocks: str) -> Path:
    """Write docs/results/page.md with outdated blocks."""
    page = tmp_path / "docs" / "results" / "page.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"by hand\n\n<!-- {block} -->\nold\n<!-- end of block -->\n" for block in blocks)
    page.write_text(text + "\nthe end\n", encoding="utf-8")
    return page


def contents(folder: Path) -> dict[str, str]:
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in (".md", ".json")]
    return {str(file.relative_to(folder)): file.read_text(encoding="utf-8") for file in files}


def call(tmp_path: Path, *arguments: str) -> None:
    main(["--docs", str(tmp_path / "docs"), "--scales", "smoke", *arguments])


def test_a_finished_run_comes_into_a_file_and_onto_the_page(tmp_path: Path) -> None:
    (cell,) = (
        cell
        for entry, cell in experiment_named("cutmixsl-table2").cells(SMOKE)
        if entry.place == ("Parallel SL", "n = 2")
    )
    with held_run(cell, tmp_path, SMALL) as run:
        run_cell(cell, run, SMALL, device="cpu", on_round=lambda event: None)
        clear(run)
    top1 = 100 * (run.summary or {})["top1"]
    page = page_of(tmp_path, "table: cutmixsl-table2 smoke", "experiments: CutMixSL")
    call(tmp_path, "--run-dir", str(tmp_path))
    first = contents(tmp_path / "docs")
    assert cell.id in first["results/data/cutmixsl-table2-smoke-fashion-mnist-small.json"]
    for word in (str(tmp_path), run.id):
        assert not [name for name, text in first.items() if word in text], "nothing of the machine"
    text = page.read_text()
    assert f"| Parallel SL | n = 2 | {top1:.2f} | {top1:.2f} | 52.91 |" in text
    assert "1 of 35 places, 1 seed |" in text
    assert text.count("by hand\n") == 2
    assert text.endswith("\nthe end\n")
    assert "\nold\n" not in text

    call(tmp_path, "--run-dir", str(tmp_path))
    assert contents(tmp_path / "docs") == first
    shutil.rmtree(tmp_path / "runs")
    call(tmp_path, "--run-dir", str(tmp_path))
    call(tmp_path)
    assert contents(tmp_path / "docs") == first, "pages are made without the runs"


@pytest.mark.usefixtures("toy")
def test_seeds_of_another_run_directory_are_added(tmp_path: Path) -> None:
    page = page_of(tmp_path, "table: toy smoke")
    finish(tmp_path / "a", "PSL", "n = 2", 0, 0.40)
    finish(tmp_path / "b", "PSL", "n = 2", 1, 0.44)
    for home in ("a", "b"):
        call(tmp_path, "--run-dir", str(tmp_path / home))
    assert "| PSL | n = 2 | 42.00 ± 2.83 | 40.00, 44.00 |" in page.read_text()


@pytest.mark.usefixtures("toy")
def test_one_data_set_can_be_asked_for(tmp_path: Path) -> None:
    other = "uoft-cs/cifar10"
    finish(tmp_path, "PSL", "n = 2", 0, 0.40)
    finish(tmp_path, "PSL", "n = 2", 0, 0.25, source=other)
    page = page_of(tmp_path, "table: toy smoke")
    call(tmp_path, "--run-dir", str(tmp_path))
    assert "| 40.00 |" in page.read_text()
    assert "| 25.00 |" in page.read_text()
    page = page_of(tmp_path, f"table: toy smoke@{other}")
    call(tmp_path)
    assert "| 40.00 |" not in page.read_text()
    assert f"--dataset {other} " in page.read_text()


def test_a_block_of_the_matrix_that_nothing_was_run_for_stays_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = ("matrix: cpu PSL", "findings: cpu PSL")
    page = page_of(tmp_path, *blocks)
    before = page.read_text()
    call(tmp_path, "--run-dir", str(tmp_path), "--matrices")
    lines = capsys.readouterr().out.splitlines()
    assert page.read_text() == before
    assert lines == [
        f"{page}: left as it is, {tmp_path} has no results of it: {block}" for block in blocks
    ]


def test_the_matrix_is_replaced_only_if_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that holds a paper's attacks has a few cells of the matrix, not all of them."""
    monkeypatch.setattr(pages, "matrix_block", lambda kind, words, home: f"{kind} of {words}")
    page = page_of(tmp_path, "matrix: cpu PSL")
    before = page.read_text()
    for options in ((), ("--run-dir", str(tmp_path))):
        call(tmp_path, *options)
        assert page.read_text() == before
        assert "--matrices is not given: matrix: cpu PSL" in capsys.readouterr().out
    call(tmp_path, "--run-dir", str(tmp_path), "--matrices")
    assert "matrix of cpu PSL" in page.read_text()
    with pytest.raises(SystemExit):
        call(tmp_path, "--matrices")
    assert "from --run-dir DIR: name it, too" in capsys.readouterr().err


def test_a_table_without_a_file_says_that_it_was_not_run(tmp_path: Path) -> None:
    page = page_of(tmp_path, "table: cutmixsl-table1 cpu")
    call(tmp_path)
    assert "Scale `cpu`: not run yet." in page.read_text()


def test_a_wrong_block_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = page_of(tmp_path, "table: cutmixsl-tabel1 cpu")
    with pytest.raises(SystemExit) as error:
        call(tmp_path)
    assert error.value.code == 1
    message = capsys.readouterr().err
    assert message.startswith(f"{page}: block 'table: cutmixsl-tabel1 cpu': unknown experiment")
    assert "did you mean cutmixsl-table1" in message


def test_committed_pages_are_what_the_command_makes_of_the_committed_files(tmp_path: Path) -> None:
    """If this fails, `python -m flwr_splitmix.experiments.pages` renews the pages."""
    before = contents(DOCS)
    shutil.copytree(DOCS, tmp_path / "docs")
    keep_results(tmp_path / "docs", None, ())
    renew_pages(tmp_path / "docs", None)
    after = contents(tmp_path / "docs")
    assert [name for name in after if after[name] != before.get(name)] == []


@pytest.mark.parametrize("result", read_results(DOCS / FOLDER), ids=lambda each: str(each.name))
def test_every_result_file_is_shown_on_the_page_of_its_paper(result: Results[Any]) -> None:
    page = DOCS / PAGES[paper_of(result.experiment)]
    link = os.path.relpath(DOCS / FOLDER / result.name, page.parent)
    assert f"([result file]({link}))" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("experiment", every_experiment().values(), ids=lambda each: each.name)
def test_every_experiment_is_on_the_page_of_its_paper(experiment: AnyExperiment) -> None:
    page = DOCS / PAGES[paper_of(experiment)]
    assert f"| `{experiment.name}` |" in page.read_text(encoding="utf-8")
