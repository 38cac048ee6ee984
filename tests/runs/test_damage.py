"""Damaged files of a run: each is named with its remedy, and the remedy works."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.reports.mixtures import pictures
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy

TOY = Toy(clients=2)


def fit(run: Run, rounds: int) -> None:
    strategy = PSL(TOY.upper(), device="cpu", steps_per_round=1, run=run)
    strategy.fit(TOY.make_clients(), rounds)


READS: dict[str, tuple[Callable[[Run], Any], str]] = {
    "begun.jsonl": (lambda run: run.begun, "restore it; without it epsilon lacks"),
    "failure.json": (lambda run: run.failure, "remove it; it only says"),
    "metrics.jsonl": (lambda run: run.rows, "remove it: the newest rounds are then missing"),
    "metrics.parquet": (lambda run: run.rows, "remove it: the rounds so far are then missing"),
    "mixtures.json": (lambda run: run.mixtures, "remove it; the report then shows no mixtures"),
    "record.json": (lambda run: run.record, "remove it; the report then lacks"),
    "state-key": (lambda run: run.state_key(), "restore it; nodes give the run its clients' stat"),
    "summary.json": (lambda run: run.summary, "remove it: the run is then unfinished"),
}


@pytest.mark.parametrize("damage", [b"{", b"[]", b"\xff"], ids=["cut off", "a list", "no text"])
@pytest.mark.parametrize("file", READS)
def test_a_damaged_file_is_named_with_its_remedy(file: str, damage: bytes, tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    (run.path / file).write_bytes(damage + b"\n")
    read, remedy = READS[file]
    with pytest.raises(RunError) as raised:
        read(run)
    assert str(raised.value).startswith(f"cannot read {run.path / file}: ")
    assert f"; {remedy}" in str(raised.value) or f", or {remedy}" in str(raised.value)


@pytest.mark.parametrize("file", [*READS, "config.json"])
def test_a_file_of_somebody_else_is_not_said_to_be_damaged(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise whoever looks at a service's runs would be told to remove them."""
    run = Run.create({}, name="x", home=tmp_path)
    (run.path / file).write_text("{}\n")
    for name in ("read_text", "read_bytes"):
        monkeypatch.setattr(Path, name, denied(file, getattr(Path, name)))
    read, _ = READS.get(file, (lambda run: Run(run.path), ""))
    with pytest.raises(RunError) as raised:
        read(run)
    assert str(raised.value).endswith(f"{file}: Permission denied; its owner may read it")


def denied(file: str, read: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that reads all files but one."""

    def reading(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == file:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path, *arguments, **options)

    return reading


CLIENT = {"rounds": 1, "seconds": 0.5, "slowest": 1, "failed": 1, "failures": [[1, "gone"]]}
KIND = {"phase": "train", "direction": "up", "count": 1, "bytes": 8, "holds": {"smashed": "text"}}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"clients": []}, "has no attribute"),
        ({"clients": {"0": 3}}, "not subscriptable"),
        (
            {"clients": {"0": {**CLIENT, "seconds": "x"}}},
            "seconds is 'x', which is neither a count",
        ),
        ({"clients": {"0": {**CLIENT, "rounds": float("nan")}}}, "rounds is 'nan'"),
        ({"clients": {"0": {**CLIENT, "failures": [["a", "b"]]}}}, "round is 'a'"),
        ({"clients": {"0": {**CLIENT, "failures": [[1, 2]]}}}, "2 is not text"),
        ({"clients": {"0": {"rounds": 1}}}, "no 'seconds'"),
        ({"messages": 3}, "has no attribute"),
        ({"messages": {"kinds": [{**KIND, "bytes": None}]}}, "bytes is None"),
        ({"messages": {"kinds": [{**KIND, "phase": {}}]}}, "{} is not text"),
        ({"messages": {"kinds": [{**KIND, "holds": []}]}}, "has no attribute"),
    ],
)
def test_a_record_of_wrong_types_is_named_with_its_remedy(
    record: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    run.write_record({"clients": {"0": CLIENT}, "messages": {"kinds": [KIND]}})
    assert run.record["clients"]["0"]["failed"] == 1
    run.write_record(record)
    with pytest.raises(RunError) as raised:
        _ = run.record
    assert str(raised.value).startswith(f"cannot read {run.path / 'record.json'}: ")
    assert reason in str(raised.value)
    assert "; remove it; the report then lacks" in str(raised.value)


MEMBER = {"client": 0, "lam": 1.0, "patches": [True, False]}
MIXTURE = {"rows": 1, "columns": 2, "norms": [1.5, "nan"], "members": [MEMBER]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"mixtures": [MIXTURE]}, "no 'round'"),
        ({"round": "x", "mixtures": []}, "round is 'x', which is neither a count"),
        ({"round": 1, "mixtures": None}, "not iterable"),
        ({"round": 1, "mixtures": [1]}, "not subscriptable"),
        ({"round": 1, "mixtures": "text"}, "string indices must be integers"),
        *(
            ({"round": 1, "mixtures": [{**MIXTURE, **damage}]}, reason)
            for damage, reason in (
                ({"rows": 10**9}, "there are no 2000000000 norms in a list"),
                ({"rows": 0.5}, "there are no 1.0 norms in a list"),
                ({"norms": {"0": 1, "1": 1}}, "there are no 2 norms in a list"),
                ({"norms": [1, "x"]}, "norm is 'x', which is neither a count"),
                ({"members": [{**MEMBER, "patches": [1]}]}, "there are no 2 patches in a list"),
                ({"members": [{**MEMBER, "lam": None}]}, "lam is None"),
            )
        ),
    ],
)
def test_mixtures_of_wrong_types_are_named_with_their_remedy(
    content: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    file = run.path / "mixtures.json"
    file.write_text(json.dumps({"round": 1, "mixtures": [MIXTURE]}))
    assert "client 0 at ratio 1.00" in pictures([run])[run.id]
    file.write_text(json.dumps(content))
    with pytest.raises(RunError) as raised:
        pictures([run])
    assert str(raised.value).startswith(f"cannot read {file}: ")
    assert reason in str(raised.value)
    assert "; remove it; the report then shows no mixtures" in str(raised.value)


BEGUN = {
    "round": 1, "clients": [0, 1], "evaluates": False, "again": [], "steps": None, "protection": "",
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"round": -1},
        {"round": True},
        {"clients": [0, -1]},
        {"clients": "01"},
        {"again": [-1]},
        {"steps": -1},
        {"steps": True},
        {"steps": "3"},
    ],
    ids=str,
)
def test_beginnings_of_no_rounds_and_no_clients_are_damage(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    """What interrupted rounds have sent is counted by them."""
    run = Run.create({}, name="x", home=tmp_path)
    (run.path / "begun.jsonl").write_text(json.dumps({**BEGUN, **wrong}) + "\n")
    with pytest.raises(RunError, match="line 1 holds other values than numbers of clients; restor"):
        _ = run.begun


@pytest.mark.parametrize("key", sorted(BEGUN))
def test_a_beginning_in_another_form_is_refused(key: str, tmp_path: Path) -> None:
    """What it does not say must not be taken for nothing, or for unknown."""
    run = Run.create({}, name="x", home=tmp_path)
    line = {name: value for name, value in BEGUN.items() if name != key}
    (run.path / "begun.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(RunError, match=f"begun.jsonl: line 1 lacks '{key}', .*; .*begin a new run"):
        _ = run.begun


def test_the_numbers_of_a_run_that_diverged_are_numbers_in_its_summary(tmp_path: Path) -> None:
    run = Run.create({"alpha": float("inf")}, name="x", home=tmp_path)
    assert run.config["alpha"] == float("inf")
    run.write_summary({"loss": float("nan"), "eval_loss": float("inf"), "mine": "nan"})
    run.config_file.extend(2)
    for file in run.path.glob("*.json"):
        json.loads(file.read_text(), parse_constant=pytest.fail)
    assert str(run.summary) == "{'eval_loss': inf, 'loss': nan, 'mine': 'nan'}"


def test_a_label_that_reads_like_a_number_stays_text(tmp_path: Path) -> None:
    """With a float for a label the run could not be resumed."""
    config = {"label": "inf", "alpha": float("-inf"), "more": [{"clip": "nan"}, float("inf")]}
    run = Run.create(config, name="x", home=tmp_path)
    run.config_file.extend(2)
    assert run.config == Run.open(run.id, home=tmp_path).config == config


def test_what_is_marked_as_a_number_and_is_none_is_a_damaged_configuration(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    for damaged in ("half", None):
        (run.path / "config.json").write_text(json.dumps({"alpha": {"splitmix-float": damaged}}))
        with pytest.raises(RunError, match="restore it, or remove the run's folder"):
            Run.open(run.id, home=tmp_path)


def test_a_damaged_configuration_is_named_with_its_remedy(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    (run.path / "config.json").write_text("{")
    with pytest.raises(RunError, match="restore it, or remove the run's folder"):
        Run.open(run.id, home=tmp_path)


@pytest.mark.parametrize("file", ["summary.json", "record.json"])
def test_a_run_goes_on_without_a_file_that_was_removed(file: str, tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    fit(run, 2)
    (run.path / file).unlink()
    again = Run.open(run.id, home=tmp_path)
    fit(again, 3)
    assert [row["round"] for row in again.rows] == [1, 2, 3]
    assert again.status == "finished"
    assert again.record


def test_a_run_without_its_metrics_goes_on_with_the_next_round(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    fit(run, 2)
    (run.path / "metrics.parquet").unlink()
    again = Run.open(run.id, home=tmp_path)
    fit(again, 3)
    assert [row["round"] for row in again.rows] == [3]
    assert again.status == "finished"
