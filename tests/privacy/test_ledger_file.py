"""A node's epsilon never falls, whatever run asks, and is on the disk before it is spent."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flwr_splitmix.privacy import Exposure, GaussianNoise, Ledger, Release
from flwr_splitmix.privacy.journal import Journal, JournalError, read_journal
from flwr_splitmix.privacy.ledger_file import LedgerFile

NOISE = GaussianNoise(sigma_s=20.0, sigma_y=10.0)
RELEASE = Release(noise=NOISE, patches=4, width=2, family="full")
DELTA = 1e-5


def spend(file: LedgerFile, records: list[int]) -> float:
    file.charge(file.ledger.price(RELEASE), np.array(records))
    return file.ledger.epsilon(DELTA)


def test_a_run_goes_on_record_by_record_in_another_process(tmp_path: Path) -> None:
    first = LedgerFile(tmp_path / "ledger", "run-1", 4)
    spend(first, [0, 1])
    spend(first, [2, 3])
    second = LedgerFile(tmp_path / "ledger", "run-1", 4)
    expected = Ledger("replace", 4)
    for records in ([0, 1], [2, 3], [0, 2]):
        expected.charge(RELEASE, records=records)
    assert spend(second, [0, 2]) == expected.epsilon(DELTA)


def test_how_often_a_round_was_begun_is_known_to_its_run_alone(tmp_path: Path) -> None:
    for run, records, expected in (("a", 4, 0), ("a", 4, 1), ("b", 4, 0), ("a", 5, 0), ("b", 4, 0)):
        file = LedgerFile(tmp_path / "ledger", run, records)
        assert file.begun[6] == expected
        file.charge(file.ledger.price(RELEASE), np.array([0]), begins=6)
        file.charge(file.ledger.price(RELEASE), np.array([1]))
        assert (file.begun[6], file.begun[0]) == (expected + 1, 0)


def test_what_another_process_has_begun_is_known_once_the_file_is_held(tmp_path: Path) -> None:
    first = LedgerFile(tmp_path / "ledger", "a", 4)
    second = LedgerFile(tmp_path / "ledger", "a", 4)
    second.charge(second.ledger.price(RELEASE), np.array([0]), begins=2)
    with first.held():
        assert first.begun[2] == 1


def test_another_run_begins_where_the_worst_record_stands(tmp_path: Path) -> None:
    last = 0.0
    for run, records in (("a", 4), ("b", 4), ("b", 5), ("a", 4), ("", 1)):
        file = LedgerFile(tmp_path / "ledger", run, records)
        assert file.ledger.epsilon(DELTA) == pytest.approx(last)
        after = spend(file, [0])
        assert after > last
        last = after
    whole = Ledger("replace", 1)
    whole.charge(RELEASE, RELEASE, RELEASE, RELEASE, RELEASE, records=[0])
    assert last == pytest.approx(whole.epsilon(DELTA))


def test_what_has_no_number_stays_too(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "ledger", "a", 4)
    file.charge(file.ledger.price(Exposure("evaluation")), None)
    again = LedgerFile(tmp_path / "ledger", "b", 4)
    assert again.ledger.epsilon(DELTA) == np.inf


def test_a_run_that_sent_nothing_leaves_what_there_was(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "ledger", "a", 4)
    before = spend(file, [0])
    for run in "bcd":
        LedgerFile(tmp_path / "ledger", run, 4)
    again = LedgerFile(tmp_path / "ledger", "a", 4)
    assert again.ledger.epsilon(DELTA) == before


def test_a_charge_that_cannot_be_written_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LedgerFile(tmp_path / "ledger", "a", 4)
    before = spend(file, [0])
    monkeypatch.setattr("os.fsync", _full)
    with pytest.raises(OSError, match="No space left"):
        spend(file, [0])
    monkeypatch.undo()
    assert file.ledger.epsilon(DELTA) == before
    again = LedgerFile(tmp_path / "ledger", "a", 4)
    assert again.ledger.epsilon(DELTA) == before


def _full(file: int) -> None:
    raise OSError(28, "No space left on device")


def test_what_an_earlier_run_spent_counts_against_every_adversary(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "ledger", "run-1", 4)
    spend(file, [0, 1])
    first = file.ledger.statement(DELTA)
    file = LedgerFile(tmp_path / "ledger", "run-2", 4)
    second = file.ledger.statement(DELTA)
    assert second.epsilon == pytest.approx(first.epsilon)
    assert second.smashed >= first.smashed > 0
    assert second.labels >= first.labels > 0


def test_two_runs_that_take_turns_pay_together(tmp_path: Path) -> None:
    """Otherwise the second of two that share a node would find its file locked."""
    first = LedgerFile(tmp_path / "ledger", "run-1", 4)
    spend(first, [0, 1])
    second = LedgerFile(tmp_path / "ledger", "run-2", 4)  # whose record 0 may be run-1's record 3
    for _ in range(3):
        spend(first, [2])
        spend(second, [3])
    with first.held():
        spent = first.ledger.epsilon(DELTA)
    worst = Ledger("replace", 1)
    worst.charge(*[RELEASE] * (1 + 3 + 3), records=[0])
    assert spent == pytest.approx(worst.epsilon(DELTA))
    for run in ("run-1", "run-2", "run-3"):  # in other processes, later
        again = LedgerFile(tmp_path / "ledger", run, 4)
        assert again.ledger.epsilon(DELTA) == pytest.approx(spent)


def test_two_processes_of_one_run_pay_record_by_record(tmp_path: Path) -> None:
    """After an interruption the process of the round before may still be alive."""
    old, new = (LedgerFile(tmp_path / "ledger", "run-1", 4) for _ in range(2))
    spend(old, [0])
    spend(new, [0])
    spend(old, [1])
    expected = Ledger("replace", 4)
    expected.charge(RELEASE, RELEASE, records=[0])
    assert old.ledger.epsilon(DELTA) == pytest.approx(expected.epsilon(DELTA))


def test_a_file_that_is_held_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = LedgerFile(tmp_path / "ledger", "run-1", 4)
    second = LedgerFile(tmp_path / "ledger", "run-1", 4)
    monkeypatch.setattr("flwr_splitmix.privacy.journal.WAIT", 0.05)
    with first.held(), pytest.raises(JournalError, match="written by another process"):
        spend(second, [0])
    monkeypatch.undo()
    with ThreadPoolExecutor() as pool:
        with first.held():
            waiting = pool.submit(spend, second, [0])
            time.sleep(0.1)
            assert not waiting.done()
        assert waiting.result(10) > 0


ROUNDS = [[0, 1], [2, 3], [0, 2], [1], [0, 3]] * 3
"""The records of more charges than a file of four records keeps line by line."""


def test_a_long_file_is_summed_up_and_no_number_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a node's new process would read, in every round, each line of any round."""
    monkeypatch.setattr("flwr_splitmix.privacy.ledger_file.LONG", 1)
    path, expected = tmp_path / "ledger", Ledger("replace", 4)
    for number, records in enumerate(ROUNDS):
        file = LedgerFile(path, "run-1", 4)
        release = replace(RELEASE, noise=replace(NOISE, sigma_s=20.0 + number))  # sums round
        file.charge(file.ledger.price(release, Exposure("gradients")), records, begins=number)
        expected.charge(release, Exposure("gradients"), records=records)
        assert file.ledger.state_dict() == expected.state_dict()
    last = LedgerFile(path, "run-1", 4)
    assert last.ledger.state_dict() == expected.state_dict()
    assert last.begun == dict.fromkeys(range(len(ROUNDS)), 1)
    assert len(read_journal(path)) < len(ROUNDS) / 2


def test_runs_at_once_go_on_with_a_file_that_one_of_them_has_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"
    first, second = LedgerFile(path, "run-1", 4), LedgerFile(path, "run-2", 4)
    for records in ROUNDS:
        spend(first, records)
        spend(second, records)
    with first.held():
        before = first.ledger.statement(DELTA)
    monkeypatch.setattr("flwr_splitmix.privacy.ledger_file.LONG", 1)
    again = LedgerFile(path, "run-1", 4)
    assert again.ledger.statement(DELTA) == before
    assert len(read_journal(path)) == 2
    with second.held(), pytest.raises(JournalError, match="written by another process"):
        Journal(path)
    worst = Ledger("replace", 1)
    worst.charge(*[RELEASE] * (2 * 3 * 3 + 2), records=[0])
    spend(second, [0])
    assert spend(first, [0]) == pytest.approx(worst.epsilon(DELTA))


def test_a_file_that_cannot_be_summed_up_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LedgerFile(tmp_path / "ledger", "run-1", 4)
    for records in ROUNDS:
        before = spend(file, records)
    lines = read_journal(tmp_path / "ledger")
    monkeypatch.setattr("flwr_splitmix.privacy.ledger_file.LONG", 1)
    monkeypatch.setattr("os.fsync", _full)
    with pytest.raises(OSError, match="No space left"):
        LedgerFile(tmp_path / "ledger", "run-1", 4)
    monkeypatch.undo()
    assert read_journal(tmp_path / "ledger") == lines
    assert LedgerFile(tmp_path / "ledger", "run-1", 4).ledger.epsilon(DELTA) == before


@pytest.mark.parametrize("version", [1, 2, 4, 99, None])
def test_a_ledger_of_another_version_is_refused(tmp_path: Path, version: int | None) -> None:
    """Also of versions that no release writes."""
    charge = {"batch": ["0.5", "0.25"], "everywhere": "0.0", "notes": ["gradients"], "count": 1}
    with closing(Journal(tmp_path / "ledger")) as journal:
        journal.append({"version": version, "run": "a", "records": 4})
        journal.append({**charge, "records": [0, 1]})
    before = (tmp_path / "ledger").read_bytes()
    with pytest.raises(
        JournalError, match="ledger is not a ledger of version 3: continue with the flwr"
    ):
        LedgerFile(tmp_path / "ledger", "a", 4)
    assert (tmp_path / "ledger").read_bytes() == before


def test_a_line_of_a_ledger_that_is_no_charge_is_refused(tmp_path: Path) -> None:
    """Passed over, it could hide a charge."""
    with closing(Journal(tmp_path / "ledger")) as journal:
        journal.append({"version": 3, "run": "a", "records": 4}, {"key": "weights"})
    with pytest.raises(JournalError, match="ledger has a bad charge: 'batch'"):
        LedgerFile(tmp_path / "ledger", "a", 4)


def test_a_ledger_with_a_note_of_another_version_is_read_and_has_no_epsilon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge = {"batch": ["0.5", "0.25"], "everywhere": "0.0", "notes": ["leftover"], "count": 1}
    with closing(Journal(tmp_path / "ledger")) as journal:
        journal.append({"version": 3, "run": "a", "records": 4}, {**charge, "records": [0]})
    assert LedgerFile(tmp_path / "ledger", "a", 4).ledger.epsilon(DELTA) == math.inf
    monkeypatch.setattr("flwr_splitmix.privacy.ledger_file.LONG", 1)
    monkeypatch.setattr("flwr_splitmix.privacy.ledger_file.RECORD_BYTES", 0)
    for run in ("a", "a", "b"):  # summed up, read again, carried to another run
        assert LedgerFile(tmp_path / "ledger", run, 4).ledger.epsilon(DELTA) == math.inf


@pytest.mark.parametrize("sums", [{"ledger": {"version": 99}}, {"begun": 5}, {"begun": [["x", 1]]}])
def test_a_sum_that_does_not_fit_is_refused(sums: dict[str, object], tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "ledger")) as journal:
        journal.append({"version": 3, "run": "a", "records": 4, **sums})
    with pytest.raises(JournalError, match="has a bad sum"):
        LedgerFile(tmp_path / "ledger", "a", 4)
