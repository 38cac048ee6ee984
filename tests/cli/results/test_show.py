"""`splitmix show` prints what the run holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from flwr_splitmix.runs import Run
from flwr_splitmix.runs.reports.sections import summary
from tests.cli.conftest import add_rounds

Splitmix = Callable[..., Result]


def test_json_is_one_object_with_all_rounds_and_the_summary(
    splitmix: Splitmix, finished: Run
) -> None:
    result = splitmix("show", finished.id, "--format", "json")
    shown = json.loads(result.stdout)
    assert result.exit_code == 0
    assert shown["id"] == finished.id
    assert shown["config"] == finished.config
    assert shown["summary"] == finished.summary
    assert shown["metrics"] == finished.rows
    assert len(shown["metrics"]) == 28


def test_json_of_an_unfinished_run_has_no_summary_but_its_rounds(
    splitmix: Splitmix, unfinished: Run
) -> None:
    shown = json.loads(splitmix("show", "latest", "--format", "json").stdout)
    assert shown["id"] == unfinished.id
    assert (shown["summary"], shown["status"]) == (None, "stopped")
    assert [row["round"] for row in shown["metrics"]] == [1, 2, 3]


def test_json_stays_json_when_training_diverged(splitmix: Splitmix, home: Path) -> None:
    run = Run.create({"alpha": float("inf")}, name="diverged", home=home)
    run.append_round({"round": 1, "loss": float("nan"), "epsilon": float("inf")})
    run.write_summary({"epsilon": float("inf")})

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    shown = json.loads(splitmix("show", "--format", "json").stdout, parse_constant=refuse)
    row = shown["metrics"][0]
    assert (row["loss"], row["epsilon"], row["uplink_bytes"]) == ("nan", "inf", None)
    assert shown["config"]["alpha"] == shown["summary"]["epsilon"] == "inf"


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("PSL", "dataset mnist"),
        ("VanillaCutMixSFL", "k 2, dataset mnist"),
        ("DPCutMixSL", "k 2, alpha inf, dataset mnist"),
        ("my own", "k 2, alpha inf, dataset mnist"),
    ],
)
def test_only_the_options_that_a_method_has_are_listed(
    splitmix: Splitmix, home: Path, strategy: str, options: str
) -> None:
    config = {"strategy": strategy, "k": 2, "alpha": float("inf"), "dataset": "mnist"}
    Run.create(config, name="x", home=home)
    (line,) = [one for one in splitmix("show").stdout.splitlines() if one.startswith("options")]
    assert line.removeprefix("options").strip() == options


@pytest.mark.parametrize(
    ("strategy", "sigma", "options"),
    [
        ("DPCutMixSL", 0.5, "k 2, sigma-s 0.5, sigma-y 0, clip patch, clip-norm 1, dataset mnist"),
        ("PSL", 0.5, "sigma-s 0.5, sigma-y 0, clip patch, clip-norm 1, dataset mnist"),
        ("CutMixSL", 0.0, "k 2, dataset mnist"),
        ("DPSGDSL", 0.0, "noise-multiplier 2, clip-norm 1, dataset mnist"),
        ("DPForwardSL", 0.0, "epsilon 8, clip-norm 1, dataset mnist"),
        ("USplitSL", 0.0, "dataset mnist"),
    ],
)
def test_the_noise_is_listed_where_there_is_any(
    splitmix: Splitmix, home: Path, strategy: str, sigma: float, options: str
) -> None:
    """The epsilon below says nothing without it."""
    config = {
        "strategy": strategy, "k": 2, "sigma-s": sigma, "sigma-y": 0.0, "clip": "patch",
        "clip-norm": 1.0, "noise-multiplier": 2.0, "epsilon": 8.0, "dataset": "mnist",
    }  # fmt: skip
    Run.create(config, name="x", home=home)
    (line,) = [one for one in splitmix("show").stdout.splitlines() if one.startswith("options")]
    assert line.removeprefix("options").strip() == options


def test_the_summary_compares_the_uplink_with_psl(splitmix: Splitmix, finished: Run) -> None:
    shown = splitmix("show", finished.id).stdout
    assert "12.3 MB (50.0 % of PSL's 24.6 MB)" in shown
    assert "78.0 % (global test set)" in shown
    assert "7 min 05 s" in shown
    assert "torch 2.4.0" in shown
    assert "finished" in shown
    assert "28 of 28" in shown


def test_only_the_last_twelve_evaluated_rounds_are_shown(splitmix: Splitmix, finished: Run) -> None:
    shown = splitmix("show", finished.id).stdout
    below = shown[shown.index("14 evaluated rounds") :].splitlines()
    first_cells = [line.split()[0] for line in below if line.split()]
    numbers = [int(cell) for cell in first_cells[1:] if cell.isdigit()]
    assert numbers == list(range(6, 29, 2))


def test_an_unfinished_run_is_summed_up_from_its_rounds(
    splitmix: Splitmix, unfinished: Run
) -> None:
    shown = splitmix("show").stdout
    assert unfinished.id in shown
    assert "stopped" in shown
    assert "3 of 28" in shown
    assert "3.0 MB (50.0 % of PSL's 6.0 MB)" in shown
    assert "53.0 % (global test set)" in shown
    assert "4.50 s" in shown


def test_the_clients_of_an_unfinished_run_are_those_of_its_rounds(
    splitmix: Splitmix, home: Path
) -> None:
    run = Run.create({}, name="stopped", home=home)
    run.begin(1, [0, 2])
    run.append_round({"round": 1, "steps": 5})
    run.begin(2, [2, 5])
    run.append_round({"round": 2, "steps": 5})
    run.begin(2, [7], evaluates=True)
    run.begin(3, [9])
    assert clients_shown(splitmix) == "3"
    run.write_summary({"clients": 2})  # those that finished a round
    assert clients_shown(splitmix) == "2"


def clients_shown(splitmix: Splitmix) -> str:
    shown = splitmix("show").stdout
    (line,) = [one for one in shown.splitlines() if one.startswith("clients")]
    return line.removeprefix("clients").strip()


def test_a_run_that_has_not_started_can_be_shown(splitmix: Splitmix, home: Path) -> None:
    # Settings that bear the name of a result are not results.
    Run.create(
        {"strategy": "psl", "loss": "cross_entropy", "num-server-rounds": 9}, name="psl", home=home
    )
    result = splitmix("show")
    assert result.exit_code == 0
    assert "0 of 9" in result.stdout
    assert "no round has been evaluated yet" in result.stdout
    assert "cross_entropy" not in result.stdout


def test_rounds_evaluated_differently_say_how(splitmix: Splitmix, home: Path) -> None:
    run = Run.create({}, name="mixed", home=home)
    run.append_round({"round": 1, "accuracy": 0.25, "accuracy_kind": "local"})
    run.append_round({"round": 2, "accuracy": 0.5, "accuracy_kind": "global"})
    last = [line.split() for line in splitmix("show").stdout.splitlines()[-2:]]
    assert [(cells[0], cells[-1]) for cells in last] == [("1", "local"), ("2", "global")]


def test_an_unknown_run_is_one_clear_error_on_stderr(splitmix: Splitmix, finished: Run) -> None:
    result = splitmix("show", "nosuchrun")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "nosuchrun" in result.stderr
    assert finished.id in result.stderr


def test_a_wrong_format_is_a_usage_error(splitmix: Splitmix, finished: Run) -> None:
    assert splitmix("show", finished.id, "--format", "xml").exit_code == 2


def test_run_dir_goes_before_the_environment(
    splitmix: Splitmix, finished: Run, tmp_path: Path
) -> None:
    other = Run.create({}, name="elsewhere", home=tmp_path / "other")
    result = splitmix("show", "--format", "json", "--run-dir", str(tmp_path / "other"))
    assert json.loads(result.stdout)["id"] == other.id


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [
        (2.345678, "2.346 at delta 1e-05"),
        (2.3451, "2.346 at"),
        (float("inf"), "no bound"),
        (None, None),
    ],
)
def test_what_was_spent_of_privacy_is_shown_if_there_is_a_ledger(
    tmp_path: Path, splitmix: Splitmix, epsilon: float | None, shown: str | None
) -> None:
    run = Run.create({"delta": 1e-5}, name="noisy", home=tmp_path)
    row = {"round": 1, "loss": 1.0, "seconds": 1.0, "steps": 1}
    run.append_round(row if epsilon is None else {**row, "epsilon": epsilon})
    printed = splitmix("show", "--run-dir", str(tmp_path)).stdout
    assert ("epsilon" in printed) == (shown is not None)
    assert shown is None or shown in printed


@pytest.mark.parametrize(("epsilon", "shown"), [(2.345678, "2.346 at delta"), ("inf", "no bound")])
def test_an_epsilon_that_a_summary_lacks_is_that_of_the_rows(
    home: Path, splitmix: Splitmix, epsilon: float | str, shown: str
) -> None:
    run = Run.create({"strategy": "DPForwardSL", "delta": 1e-5}, name="x", home=home)
    run.append_round({"round": 1, "train_epsilon": float(epsilon)})
    run.write_summary({"strategy": "DPForwardSL", "epsilon": None})
    assert shown in splitmix("show").stdout


def test_a_failed_run_says_why(splitmix: Splitmix, unfinished: Run) -> None:
    unfinished.note_failure("LinkError: round 4: 1 client is left, min-nodes is 2")
    assert unfinished.id in splitmix("runs").stdout
    assert "failed" in splitmix("runs").stdout
    shown = splitmix("show").stdout
    assert "failed" in shown
    assert "1 client is left, min-nodes is 2" in shown
    as_json = json.loads(splitmix("show", "--format", "json").stdout)
    assert as_json["error"] == unfinished.failure


def test_a_run_that_ended_early_says_why(splitmix: Splitmix, finished: Run) -> None:
    assert "stopped" not in splitmix("show").stdout
    why = "all clients have spent their privacy budgets"
    finished.write_summary({**(finished.summary or {}), "stopped": why})
    (line,) = (line for line in splitmix("show").stdout.splitlines() if "stopped" in line)
    assert why in line
    assert f"It was stopped: {why}" in summary(finished)


def test_label_and_options_are_shown(splitmix: Splitmix, home: Path) -> None:
    config = {"label": "ours", "k": 3, "alpha": float("inf"), "dataset": "d", "partition": "iid"}
    Run.create(config, name="x", home=home)
    shown = splitmix("show").stdout
    assert "ours" in shown
    assert "k 3, alpha inf, dataset d, partition iid" in shown


@pytest.mark.parametrize("command", [["show"], ["plot"], ["attack", "show"], ["export"]])
def test_commands_about_a_run_take_its_label(
    splitmix: Splitmix, home: Path, tmp_path: Path, command: list[str]
) -> None:
    run = Run.create({"label": "mine"}, name="run", home=home)
    add_rounds(run, 1)
    outputs = {"plot": ["-o", str(tmp_path / "runs.png")], "export": [str(tmp_path / "model")]}
    result = splitmix(*command, "mine", *outputs.get(command[0], []))
    output = result.stdout + result.stderr
    assert run.id in output or (result.exit_code == 0 and "wrote" in output), output
