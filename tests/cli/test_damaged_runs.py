"""Runs with files of the wrong types, or made to mislead: the other runs are shown all the same."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from flwr_splitmix.cli.run.following import _facts as of_progress
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.flower_run import facts_of as of_flower

Splitmix = Callable[..., Result]

DEEP = "[" * 100_000
SURROGATE = '{"evaluation": "\\ud800"}'


def of(**values: Any) -> str:
    return json.dumps(values)


@pytest.mark.parametrize(
    ("summary", "message"),
    [
        (of(top1="x"), "top1 is 'x', which is not a number"),
        (of(wall_s=float("nan")), "wall_s is nan, which cannot be"),
        (of(uplink_bytes=10**400), "uplink_bytes is 1000"),
        (of(loss=[1]), "loss is [1], which is not a number"),
        (of(eval_f1={}), "eval_f1 is {}, which is not a number"),
        (of(evaluation=["x"]), "evaluation is ['x'], which is not text"),
        (of(versions=["x"]), "versions is ['x'], which is not a JSON object"),
        (DEEP, "it is nested too deeply"),
        (SURROGATE, "surrogates not allowed"),
    ],
)
def test_a_summary_of_wrong_types_is_unreadable_and_hides_no_other_run(
    summary: str, message: str, splitmix: Splitmix, finished: Run, unfinished: Run, tmp_path: Path
) -> None:
    (unfinished.path / "summary.json").write_text(summary, encoding="utf-8")
    listed = splitmix("runs")
    assert (listed.exit_code, listed.exception) == (0, None)
    assert "unreadable" in listed.stdout
    assert "78.0 % global test set" in listed.stdout
    for command in (
        ["show"],
        ["show", "--format", "json"],
        ["compare"],
        ["report", "-o", str(tmp_path / "x.html")],
    ):
        result = splitmix(command[0], unfinished.id, *command[1:])
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"cannot read {unfinished.path / 'summary.json'}: ")
        assert message in line
        assert line.endswith("; remove it: the run is then unfinished, and resuming it writes it "
                             "again")  # fmt: skip


LONG = pa.DictionaryArray.from_arrays(pa.array([0] * 2100, pa.int32()), pa.array(["x" * 2**20]))
"""Texts of more than two gigabytes, in a file of 5 kB."""


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"round": [1], "accuracy": ["x"]}, "accuracy is 'x', which is not a number"),
        ({"round": [1], "seconds": [float("nan")]}, "seconds is nan, which cannot be"),
        ({"round": [1], "accuracy_kind": [3]}, "accuracy_kind is 3, which is not text"),
        ({"round": ["x"]}, "round is 'x', which is not a number"),
        ({"loss": [1.0]}, "a row has no number of its round"),
        ({"round": [1], "accuracy_spread": ["x"]}, "accuracy_spread is 'x', which is not a number"),
        ({"round": pa.array(np.zeros(2**21, np.int64))}, "it has 2097152 rows of 1 column"),
        ({"round": range(1, 2101), "note": LONG}, "its texts have 2202009600 bytes or more, decod"),
        ({"round": [1], "note": [["x"]]}, "its column 'note' has list<element: string>, not numb"),
    ],
)
def test_metrics_of_wrong_types_are_unreadable(
    columns: dict[str, Any], message: str, splitmix: Splitmix, unfinished: Run, tmp_path: Path
) -> None:
    pq.write_table(pa.table(columns), unfinished.path / "metrics.parquet")
    assert "unreadable" in splitmix("runs").stdout
    for command in ("show", "compare", "plot"):
        options = ["-o", str(tmp_path / "x.png")] if command == "plot" else []
        result = splitmix(command, unfinished.id, *options)
        assert result.exit_code == 1
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


def test_columns_that_are_large_once_decoded_are_unreadable(
    splitmix: Splitmix, unfinished: Run
) -> None:
    """The sizes are in the file's metadata; without a dictionary, each text is stored."""
    texts = pa.table({"note": ["x" * 2**26]})
    with pq.ParquetWriter(
        unfinished.path / "metrics.parquet", texts.schema, use_dictionary=False
    ) as writer:
        for _ in range(33):
            writer.write_table(texts)
    result = splitmix("show", unfinished.id)
    assert result.exit_code == 1
    assert re.search(r"its columns have 22145\d{5} bytes, decoded", result.stderr)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("metrics.parquet", lambda run: run.rows),
        ("metrics.jsonl", lambda run: run.rows),
        ("begun.jsonl", lambda run: run.begun),
        ("summary.json", lambda run: run.summary),
    ],
)
def test_what_is_no_regular_file_or_far_too_large_is_not_read(
    name: str, read: Callable[[Run], Any], unfinished: Run
) -> None:
    file = unfinished.path / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    with pytest.raises(RunError, match=f"cannot read {file}: it is not a regular file"):
        read(Run(unfinished.path))
    file.unlink()
    file.touch()
    os.truncate(file, 2**40)
    with pytest.raises(RunError, match=f"{file}: it has {2**40} bytes, and {2**28} are the most"):
        read(Run(unfinished.path))


@pytest.mark.usefixtures("impatient")
def test_progress_that_is_no_regular_file_is_none(unfinished: Run) -> None:
    os.mkfifo(unfinished.path / "progress.json")
    os.mkfifo(unfinished.path / "flower.json")
    assert (of_progress(unfinished), of_flower(unfinished)) == ({}, {})


def test_metrics_without_columns_have_them_empty(
    splitmix: Splitmix, unfinished: Run, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"round": [1, 2], "loss": [2.0, 1.0]}),
                   unfinished.path / "metrics.parquet")  # fmt: skip
    assert "2/28" in splitmix("runs").stdout
    for command in ("show", "compare", "plot", "report"):
        endings = {"plot": "png", "report": "html"}
        options = ["-o", f"{tmp_path / 'x'}.{endings[command]}"] if command in endings else []
        result = splitmix(command, unfinished.id, *options)
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("config", [DEEP, '{"label": "\\udc80"}'])
def test_a_configuration_that_cannot_be_read_is_skipped(
    config: str, splitmix: Splitmix, finished: Run, unfinished: Run
) -> None:
    (unfinished.path / "config.json").write_text(config, encoding="utf-8")
    assert finished.id in splitmix("runs").stdout
    result = splitmix("show", unfinished.id)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "restore it, or remove the run's folder" in result.stderr


def test_a_very_long_id_is_none(splitmix: Splitmix, finished: Run) -> None:
    result = splitmix("show", "a" * 300)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "is not a run's id: an id has at most 255 bytes" in result.stderr


def test_nothing_of_a_run_commands_the_terminal(
    splitmix: Splitmix, finished: Run, unfinished: Run, tmp_path: Path
) -> None:
    red = "\x1b[31mred\u202e"
    config = {**unfinished.config, "strategy": red, "model": {"name": red}, "label": red, red: red}
    (unfinished.path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    facts = {"evaluation": red, "privacy": red, "versions": {red: red}, "top1": 0.5, "epsilon": 1.0}
    (unfinished.path / "summary.json").write_text(json.dumps(facts), encoding="utf-8")
    renamed = unfinished.path.with_name(f"{unfinished.id}{red}")
    unfinished.path.rename(renamed)
    both = ["latest", finished.id, "--mix-kinds"]
    for command in (
        ["runs"],
        ["show"],
        ["show", "--format", "json"],
        ["show", "nothing"],
        ["compare", *both],
        *(["compare", *both, "--format", name] for name in ("csv", "markdown", "latex")),
        ["plot", "latest", "-o", str(tmp_path / "x.svg")],
    ):
        result = splitmix(*command)
        assert result.exit_code == (command[-1] == "nothing"), result.output
        assert "\x1b" not in result.output
        assert "\u202e" not in result.output
        assert command[0] == "plot" or "x1b" in result.output or "u001b" in result.output
    assert "\x1b" not in (tmp_path / "x.svg").read_text(encoding="utf-8")
    (renamed / "summary.json").write_text("{", encoding="utf-8")
    result = splitmix("show")
    assert f"{unfinished.id}\\x1b[31mred\\u202e/summary.json" in result.stderr
