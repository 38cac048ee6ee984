"""A journal keeps what was acknowledged, and notices what was changed."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.privacy.journal import TAIL, Journal, JournalError, SharedJournal, read_journal

ENTRIES: list[dict[str, Any]] = [{"n": 0, "text": "a"}, {"n": 1, "text": "b\n"}, {"n": 2}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "new" / "journal.jsonl")
    journal.append(ENTRIES[0])
    journal.append(*ENTRIES[1:])
    journal.close()
    return journal.path


def test_what_was_appended_is_read_also_after_another_process_went_on(path: Path) -> None:
    assert read_journal(path) == ENTRIES
    again = Journal(path)
    again.append({"n": 3})
    again.close()
    assert [entry["n"] for entry in read_journal(path)] == [0, 1, 2, 3]
    assert path.stat().st_mode & 0o777 == 0o600


def test_numbers_that_json_lacks_are_text(path: Path) -> None:
    """A server's plan may have some, and a node's audit log shows it."""
    journal = Journal(path)
    journal.append({"n": 3, "share": {"lam": math.nan}})
    journal.close()
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    assert read_journal(path)[-1] == {"n": 3, "share": {"lam": "nan"}}


def test_an_unfinished_last_line_was_never_acknowledged(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"n": 3, "che')
    assert read_journal(path) == ENTRIES
    again = Journal(path)
    again.append({"n": 3})
    again.close()
    assert [entry["n"] for entry in read_journal(path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("length", [TAIL // 2, TAIL, 3 * TAIL])
@pytest.mark.parametrize("unfinished", ["", "{", " " * 2 * TAIL])
def test_lines_of_any_length_are_found_from_the_end(
    path: Path, length: int, unfinished: str
) -> None:
    """A line of a mebibyte does not make it unreadable, nor does an unfinished one empty it."""
    journal = Journal(path)
    journal.append({"n": 3, "text": "x" * length})
    journal.close()
    with path.open("a") as file:
        file.write(unfinished)
    again = Journal(path, verify=False)
    again.append({"n": 4})
    again.close()
    assert [entry["n"] for entry in read_journal(path)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_changed_line_is_noticed(path: Path, line: int) -> None:
    lines = path.read_text().splitlines()
    entry = json.loads(lines[line])
    lines[line] = json.dumps({**entry, "n": 7})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(JournalError, match=f"line {line + 1} of .*was changed"):
        Journal(path)


def test_a_missing_line_is_noticed(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[2]]) + "\n")
    with pytest.raises(JournalError, match="a line before it is missing"):
        read_journal(path)


@pytest.mark.parametrize("text", ["no json", "[1]", '{"n": 1}', "3"])
def test_what_is_no_journal_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other"
    path.write_text(text + "\n")
    with pytest.raises(JournalError, match=r"line 1 of .*other is damaged"):
        Journal(path)


def test_one_process_writes_at_a_time(path: Path) -> None:
    mine = Journal(path)
    code = (
        "import sys; from pathlib import Path; from flwr_splitmix.privacy.journal import *\n"
        "try: Journal(Path(sys.argv[1]))\nexcept JournalError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "is being written by another process" in output
    mine.close()
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == ""


def test_a_file_system_without_locks_costs_no_descriptor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system; no attempt of a node keeps one open."""

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="No locks available"):
            Journal(path)
    assert len(os.listdir("/dev/fd")) == before


def test_a_full_disk_leaves_the_journal_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    real = os.write
    written: list[int] = []

    def full(file: int, data: memoryview) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(real(file, data[:5]))
        return written[0]

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        journal.append({"n": 3})
    monkeypatch.undo()
    journal.append({"n": 4})
    journal.close()
    assert [entry["n"] for entry in read_journal(path)] == [0, 1, 2, 4]


def test_replacing_is_whole_and_keeps_the_lock(path: Path) -> None:
    journal = Journal(path)
    journal.replace([{"n": 9}])
    with pytest.raises(JournalError, match="another process"):
        Journal(path)
    journal.append({"n": 10})
    journal.close()
    assert [entry["n"] for entry in read_journal(path)] == [9, 10]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_new_journal_survives_a_loss_of_power_with_its_folders(
    tmp_path: Path, flushed: list[Path]
) -> None:
    journal = Journal(tmp_path / "new" / "folder" / "journal.jsonl")
    journal.append({"n": 0})
    assert {tmp_path, tmp_path / "new", tmp_path / "new" / "folder", journal.path} == set(flushed)

    flushed.clear()
    journal.replace([{"n": 1}])
    assert flushed[-1] == journal.path.parent  # or the old file could come back, and miss lines
    journal.close()

    flushed.clear()
    Journal(tmp_path / "journal.jsonl", durable=False).close()
    assert flushed == []


def test_a_file_with_other_lines_has_changed_though_it_is_as_long(tmp_path: Path) -> None:
    """A replaced file may get the place and the length of one that was replaced before."""
    path, other = tmp_path / "one", tmp_path / "other"
    journal = SharedJournal(path)
    journal.append({"n": 1})
    journal.note_seen()
    assert not journal.changed
    SharedJournal(other).append({"n": 2})
    path.write_bytes(other.read_bytes())
    assert journal.changed


@pytest.mark.parametrize("verify", [True, False])
def test_a_line_nested_too_deeply_is_damaged(path: Path, verify: bool) -> None:
    path.write_text("[" * 100_000 + "]" * 100_000 + "\n")
    with pytest.raises(JournalError, match="is damaged"):
        Journal(path, verify=verify)
    with pytest.raises(JournalError, match=r"line 1 of journal\.jsonl is damaged"):
        read_journal(path)
