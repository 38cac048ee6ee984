"""`splitmix experiment`: from a name to runs and a table, and a clear error where that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from flwr_splitmix.cli.experiment.grid_display import GridDisplay
from flwr_splitmix.experiments import EXPERIMENTS, SCALES, Entry, Experiment, Ordering, variant
from flwr_splitmix.experiments.grid import CellProgress
from flwr_splitmix.runs import Run

Splitmix = Callable[..., Result]

TWO = ("cutmixsl-table2", "--scale", "smoke", "--cells", "PSL n=2, SFL n=2")


def test_the_list_names_every_experiment(splitmix: Splitmix) -> None:
    lines = splitmix("experiment", "list").stdout.splitlines()
    for name, experiment in EXPERIMENTS.items():
        (line,) = [line for line in lines if line.split()[0] == name]
        assert experiment.title in line


def test_run_then_show_then_run_again(splitmix: Splitmix, home: Path) -> None:
    first = splitmix("experiment", "run", *TWO, "--seeds", "0,1")
    assert first.exit_code == 0, first.output
    assert "4 cells, 0 of them finished before" in first.stdout
    assert "[4/4] " in first.stdout

    shown = splitmix("experiment", "show", TWO[0], "--scale", "smoke", "--format", "json")
    (table,) = json.loads(shown.stdout)
    finished_lines = {line["row"]: line for line in table["lines"] if line["seeds"]}
    assert finished_lines.keys() == {"Parallel SL", "SplitFed"}
    tops = {(r.config["strategy"], r.config["seed"]): (r.summary or {})["top1"] for r in runs(home)}
    assert finished_lines["SplitFed"]["seeds"] == [0, 1]
    assert finished_lines["SplitFed"]["values"] == [100 * tops["SFL", 0], 100 * tops["SFL", 1]]
    assert finished_lines["SplitFed"]["paper"] == {"CIFAR-10": 53.96}
    verdicts = {(o["low"][0], o["high"][0], o["low"][1]): o["verdict"] for o in table["orderings"]}
    psl, sfl = finished_lines["Parallel SL"]["mean"], finished_lines["SplitFed"]["mean"]
    assert verdicts["Parallel SL", "SplitFed", "n = 2"] == ("agrees" if psl < sfl else "disagrees")
    assert verdicts["Parallel SL", "SplitFed", "n = 4"] == "not run"

    again = splitmix("experiment", "run", *TWO, "--seeds", "0,1,1")
    assert "4 cells, 4 of them finished before" in again.stdout
    assert len(runs(home)) == 4


def runs(home: Path) -> list[Run]:
    return Run.all(home)


def test_the_runs_are_runs_like_others(splitmix: Splitmix) -> None:
    splitmix("experiment", "run", TWO[0], "--scale", "smoke", "--cells", "PSL n=2")
    listed = splitmix("runs").stdout
    assert "PSL" in listed
    assert "2/2" in listed
    assert "finished" in listed
    assert "fashion-mnist-small" in splitmix("show", "--format", "json").stdout


def test_experiments_of_several_data_sets_are_run_by_one_command(
    splitmix: Splitmix, home: Path
) -> None:
    names = ("patch-shuffling-table2", "patch-shuffling-table7")  # of one label, and of several
    cells = ("--cells", "PatchShuffleSL tokens-to-token, BatchShuffleSL kappa=0.5")
    result = splitmix("experiment", "run", *names, "--scale", "smoke", *cells)
    assert result.exit_code == 0, result.output
    assert "2 cells, 0 of them finished before" in result.stdout
    data = sorted(run.config["dataset"] for run in runs(home))
    assert data == ["fashion-mnist-multi", "fashion-mnist-small"]


def test_what_was_not_run_is_shown_as_such_with_the_papers_numbers(splitmix: Splitmix) -> None:
    shown = splitmix("experiment", "show", "patch-shuffling-table1")
    assert shown.exit_code == 0
    lines = {line.split("  ")[0]: line for line in shown.stdout.splitlines()}
    assert "not run" in lines["SL"]
    assert "91.05" in lines["SL"]
    markdown = splitmix("experiment", "show", "cutmixsl-table1", "--format", "markdown").stdout
    assert "| Patch CutMix | ViT-Tiny | - | not run | 75.55 | - | - |" in markdown


def test_a_failing_cell_is_one_clear_error_and_the_exit_status(
    splitmix: Splitmix, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    toy = Experiment(
        "toy",
        "one good, one wrong",
        "",
        tuple(Entry(m, "n = 2", variant(m, clients=2)) for m in ("NoSuchSL", "PSL")),
        (Ordering(("NoSuchSL", "n = 2"), ("PSL", "n = 2")),),
    )
    monkeypatch.setitem(EXPERIMENTS, "toy", toy)
    result = splitmix("experiment", "run", "toy", "--scale", "smoke")
    assert result.exit_code == 1
    assert "failed: unknown method 'NoSuchSL'" in result.stdout
    assert result.stderr == "1 of 2 cells failed\n"
    assert {run.config["strategy"]: run.status for run in runs(home)} == {
        "NoSuchSL": "failed",
        "PSL": "finished",
    }


def test_an_interrupted_grid_says_how_to_go_on(
    splitmix: Splitmix, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: object, progress: CellProgress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(GridDisplay, "show", interrupt)
    result = splitmix("experiment", "run", *TWO)
    assert result.exit_code == 130
    assert result.stderr == "stopped; the same command continues from here\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "cutmixsl-tabel1"), "did you mean cutmixsl-table1"),
        (("run", "cutmixsl-table1", "--scale", "huge"), "'huge'"),
        (("run", "cutmixsl-table1", "--seeds", "0,x"), "seeds is '0,x'"),
        (("run", "cutmixsl-table1", "--seeds", "-1"), "seeds is '-1'"),
        (("run", "cutmixsl-table1", "--epochs", "0"), "epochs is 0"),
        (("run", "cutmixsl-table1", "--jobs", "0"), "jobs is 0"),
        (("run", "cutmixsl-table1", "--cells", "RNN"), "'rnn'"),
        (("run", "cutmixsl-table3", "--epochs", "2"), "run as it is: no epochs, no cells"),
        (("show", "cutmixsl-table3", "--epochs", "2"), "run as it is: no epochs, no cells"),
        (("show", "nothing-like-it"), "available: cutmixsl-fig2, cutmixsl-table1"),
        (("show", "nothing-like-it"), "patch-shuffling-table5-privacy"),
        (("show", "cutmixsl-tabel3"), "did you mean cutmixsl-table3"),
        (("show", "dp-cutmixsl-fig9d"), "did you mean dp-cutmixsl-fig9c"),
        (("show", "cutmixsl-tabel3", "cutmixsl-table3"), "did you mean cutmixsl-table3"),
        (("run", "mixguard-cola", "--dataset", "/no/such"), "'/no/such' does not hold CoLA"),
        (("run", "cutmixsl-table1", "--dataset", "/no/such"), "no image dataset '/no/such'"),
        (("run", "cutmixsl-table3", "--dataset", "/no/such"), "no image dataset '/no/such'"),
        (("run", "cutmixsl-table1", "--device", "cuda:99"), "device 'cuda:99' is not available"),
        (("run", "cutmixsl-table3", "--device", "cuda:99"), "device 'cuda:99' is not available"),
        (
            ("run", "patch-shuffling-table3-privacy"),
            "Criteo's records, and a model of them, are not at hand.",
        ),
        (("show", "cutmixsl-table1", "--scale", ""), "available: smoke, cpu, paper"),
    ],
)
def test_what_cannot_be_is_one_clear_error(
    splitmix: Splitmix, arguments: tuple[str, ...], words: str, home: Path
) -> None:
    result = splitmix("experiment", *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert not home.exists()


def test_a_corpus_without_public_texts_is_one_error(
    splitmix: Splitmix, tmp_path: Path, home: Path
) -> None:
    folder = tmp_path / "cola"
    folder.mkdir()
    for name in ("in_domain_train.tsv", "in_domain_dev.tsv"):
        (folder / name).write_text("gj04\t1\t\tA sentence.\n" * 3, encoding="utf-8")
    result = splitmix("experiment", "run", "mixguard-cola", "--dataset", str(folder))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "public_text" in result.stderr
    assert not home.exists()


def test_listing_and_showing_do_not_load_torch(home: Path) -> None:
    run = Run.create(SCALES["cpu"].cell(variant("PSL")).config | {"x": 1}, name="psl", home=home)
    run.write_summary({"top1": 0.5, "uplink_bytes": 1, "downlink_bytes": 1, "rounds": 1})
    script = (
        "import sys\n"
        "from flwr_splitmix.cli import app\n"
        "app(['experiment', 'list'], standalone_mode=False)\n"
        f"app(['experiment', 'show', 'cutmixsl-table1', '--run-dir', {str(home)!r}],"
        " standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "50.00" in process.stdout


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no such folder here")
def test_seeds_and_the_folder_are_checked_before_a_cell_begins(splitmix: Splitmix) -> None:
    large = splitmix("experiment", "run", *TWO, "--seeds", str(2**63))
    assert (large.exit_code, large.stderr.count("\n")) == (1, 1)
    assert "they must be numbers from 0 to 2**63 - 1" in large.stderr
    for command in (TWO, ("patch-shuffling-table7-privacy", "--scale", "smoke")):
        result = splitmix("experiment", "run", *command, "--run-dir", "/proc/x")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert "--run-dir is '/proc/x', where nothing can be written (" in result.stderr
