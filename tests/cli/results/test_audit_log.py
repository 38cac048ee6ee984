"""`splitmix audit-log` shows a node's record, and notices changes to it."""

from __future__ import annotations

import json
import os
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import pytest
import torch

from flwr_splitmix.links.node.audit import AuditLog
from flwr_splitmix.privacy import journal
from flwr_splitmix.privacy.ledger_file import LedgerFile
from tests.cli.conftest import Splitmix


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "audit-0.jsonl"
    for server_round in (1, 2):
        log = AuditLog(path, {"run": "psl-1", "round": server_round, "client": 0}, strict=True)
        smashed = {"smashed": [torch.zeros(4, 1000)], "labels": torch.zeros(4)}
        log.write("step", smashed, step=0, share=[{"share": "noisy"}], epsilon=server_round / 4)
        log.refuse("step", "no epsilon", step=1)
    return path


def test_it_sums_up_rounds_and_rejections(splitmix: Splitmix, path: Path) -> None:
    lines = splitmix("audit-log", str(path)).stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["psl-1", "1"], ["psl-1", "2"]]
    assert "1 x smashed, 1 x labels" in lines[1]
    assert lines[1].split()[-2:] == ["0.25", "1"]
    assert lines[3] == "rejected 2 times: no epsilon"
    assert lines[4] == "4 lines, 32.0 kB sent, 2 requests rejected, epsilon 0.5"


def test_a_lower_segment_is_summed_up(splitmix: Splitmix, path: Path) -> None:
    log = AuditLog(path, {"run": "psl-1", "round": 2, "client": 0}, strict=True)
    weights = {f"head.stack.{i}.weight": torch.zeros(2) for i in range(22)}
    log.write("release", {"lower-segment": weights, "metrics": {"loss": 1.0}})
    lines = splitmix("audit-log", str(path)).stdout.splitlines()
    assert "1 x smashed, 1 x labels, lower-segment (22 arrays)" in lines[2]
    assert "stack" not in "".join(lines)


def test_the_nodes_own_test_data_are_told_from_the_benchmarks(
    splitmix: Splitmix, tmp_path: Path
) -> None:
    """Neither counts with the training data."""
    path = tmp_path / "audit-0.jsonl"
    log = AuditLog(path, {"run": "psl-1", "round": 1, "client": 0}, strict=True)
    smashed = {"smashed": [torch.zeros(4)]}
    log.write("step", smashed, step=0)
    for kind, start in (("federated", 0), ("benchmark", 0), ("benchmark", 4)):
        log.write("encode_test", smashed, tests={"kind": kind, "start": start, "stop": start + 4})
    log.refuse("encode_test", "no", tests={"kind": "federated"})
    log.write("decode_test", {"messages": [torch.zeros(4)]})
    log.write("score", {"examples": 8}, tests={"kind": "benchmark"})
    log.write("step", smashed, step=1)
    row = " ".join(splitmix("audit-log", str(path)).stdout.splitlines()[1].split())
    assert (
        "2 x smashed, 1 x smashed (federated test), 2 x smashed (benchmark test), "
        "1 x messages (benchmark test)" in row
    )


def test_it_says_where_uploads_went(splitmix: Splitmix, path: Path) -> None:
    for address in ("mixer.example:9444", "server.example:9443"):
        facts = {"run": "psl-1", "round": 3, "client": 0, "to": address}
        log = AuditLog(path, facts, strict=True)
        for step in range(2):
            log.write("step", {"smashed": [torch.zeros(1_000_000)]}, step=step)
    lines = splitmix("audit-log", str(path)).stdout.splitlines()
    assert lines[-3:-1] == [
        "8.0 MB sent to mixer.example:9444",
        "8.0 MB sent to server.example:9443",
    ]


def test_an_address_that_was_refused_got_nothing(splitmix: Splitmix, path: Path) -> None:
    """Not even "0.0 MB sent to" it."""
    for address, exchange in (("mixer:1", "step"), ("evil:1", "round"), ("evil:1", "round")):
        log = AuditLog(path, {"run": "psl-1", "round": 3, "client": 0, "to": address}, strict=True)
        if exchange == "step":
            log.write(exchange, {"smashed": [torch.zeros(1_000_000)]}, step=0)
        log.refuse(exchange, "not there")
    lines = splitmix("audit-log", str(path)).stdout.splitlines()
    assert lines[-3:-1] == ["4.0 MB sent to mixer:1", "nothing sent to evil:1 (rejected)"]


def test_as_json_it_prints_every_line(splitmix: Splitmix, path: Path) -> None:
    entries = json.loads(splitmix("audit-log", str(path), "--format", "json").stdout)
    assert [entry["bytes"] for entry in entries if "bytes" in entry] == [16016, 16016]


def test_a_changed_line_ends_it_with_an_error(splitmix: Splitmix, path: Path) -> None:
    path.write_text(path.read_text().replace("0.25", "0.05"))
    result = splitmix("audit-log", str(path))
    assert result.exit_code == 1
    assert "line 1 of" in result.stderr
    assert "was changed" in result.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("time", None),
        ("time", 1e300),
        ("run", []),
        ("round", [1]),
        ("sent", True),
        ("sent", [1]),
        ("bytes", 10**400),
        ("bytes", "8"),
        ("epsilon", 10**400),
        ("epsilon", []),
        ("refused", {}),
        ("to", []),
        ("kind", 1),
        ("start", -1),
        ("stop", True),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_a_line_with_a_value_that_no_node_writes_is_refused(
    splitmix: Splitmix, tmp_path: Path, key: str, value: object
) -> None:
    line = {"time": 1.5, "run": "r", "round": 1, "client": 0, "exchange": "step", "to": "a:1"}
    with closing(journal.Journal(tmp_path / "audit-0.jsonl")) as lines:
        lines.append(line, {**line, key: value})
    result = splitmix("audit-log", str(lines.path))
    message = f"line 2 of {lines.path} is not a line of an audit log: its {key} cannot be\n"
    assert (result.exit_code, result.stderr) == (1, message)


@pytest.mark.parametrize("depth", [2000, 100_000])
def test_a_line_that_is_nested_too_deeply_is_no_traceback(
    splitmix: Splitmix, tmp_path: Path, depth: int
) -> None:
    """The package never writes one, but any program that can write the file may."""
    path = tmp_path / "audit-0.jsonl"
    entry = '"client": 0, "exchange": "step", "round": 1, "run": "r", "share": '
    entry = f'{{{entry}{"[" * depth}{"]" * depth}, "time": 1.5'
    check = blake2b(f"{entry}}}".encode(), digest_size=16).hexdigest()
    path.write_text(f'{entry}, "check": "{check}"}}\n')
    result = splitmix("audit-log", str(path), "--format", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr in (
        "line 1 of audit-0.jsonl is damaged\n",
        f"{path} cannot be printed: it is nested too deeply\n",
    )


def test_a_missing_file_is_named(splitmix: Splitmix, tmp_path: Path) -> None:
    result = splitmix("audit-log", str(tmp_path / "no.jsonl"))
    assert result.exit_code == 1
    assert "no.jsonl cannot be read: No such file" in result.stderr


def test_a_nodes_ledger_is_no_audit_log(splitmix: Splitmix, tmp_path: Path) -> None:
    """It is beside the log, so it is easily given instead."""
    LedgerFile(tmp_path / "privacy-ledger-0.jsonl", "psl-1", 10)
    result = splitmix("audit-log", str(tmp_path / "privacy-ledger-0.jsonl"))
    assert result.exit_code == 1
    assert "privacy-ledger-0.jsonl is not an audit log: a node's is audit-N.jsonl" in result.stderr


def test_an_unfinished_last_line_is_said(splitmix: Splitmix, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    for form in ("table", "json"):
        result = splitmix("audit-log", str(path), "--format", form)
        assert result.exit_code == 0
        assert f"the last line of {path} is unfinished and not shown: " in result.stderr
    assert len(json.loads(result.stdout)) == 3


@pytest.mark.usefixtures("impatient")
def test_what_is_no_regular_file_or_has_no_lines_is_not_read(
    splitmix: Splitmix, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LONGEST", 1000)
    path.write_bytes(bytes(1001))
    result = splitmix("audit-log", str(path))
    assert (result.exit_code, result.stderr) == (1, "line 1 of audit-0.jsonl is too long\n")
    path.unlink()
    os.mkfifo(path)
    result = splitmix("audit-log", str(path))
    message = f"{path} cannot be read: it is not a regular file\n"
    assert (result.exit_code, result.stderr) == (1, message)


def test_bytes_without_a_line_are_no_audit_log(splitmix: Splitmix, path: Path) -> None:
    path.write_bytes(b"something else")
    result = splitmix("audit-log", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "is not an audit log: a node's is audit-N.jsonl" in result.stderr
    path.write_bytes(b"")  # one to which nothing has been written yet
    result = splitmix("audit-log", str(path))
    assert (result.exit_code, result.stderr) == (0, "")
