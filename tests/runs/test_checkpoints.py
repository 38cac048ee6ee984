"""What was saved loads again; a fault costs at most the newest state, never the one before it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flwr_splitmix.runs.checkpoints import CheckpointStore, ClientStore
from flwr_splitmix.storage import StorageError


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((3, 2), value)}


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])


def test_a_checkpoint_loads_as_it_was_saved(tmp_path: Path) -> None:
    saved = {
        "half": torch.randn(4, 3).to(torch.bfloat16),
        "mask": torch.tensor([True, False]),
        "count": torch.tensor(7),
        "empty": torch.empty(0, 5),
    }
    file = CheckpointStore(tmp_path).save(12, saved, {"seed": 3, "order": [2, 1], "lr": 0.1})
    checkpoint = CheckpointStore(tmp_path).load()
    assert file == tmp_path / "round-000012.safetensors"
    assert checkpoint.round == 12
    assert checkpoint.meta == {"seed": 3, "order": [2, 1], "lr": 0.1}
    assert checkpoint.tensors.keys() == saved.keys()
    for name, tensor in saved.items():
        assert checkpoint.tensors[name].dtype == tensor.dtype
        assert torch.equal(checkpoint.tensors[name], tensor)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for number in (5, 10, 1_000_000, 2_000_000):
        store.save(number, tensors(number), {})
    assert store.rounds() == [1_000_000, 2_000_000]
    assert len(list(tmp_path.iterdir())) == 2
    assert store.load(1_000_000).tensors["weight"][0, 0] == 1_000_000


def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    names = ["notes.txt", ".round-000009.safetensors.x", "round-000009.safetensors.bak"]
    for name in names:
        (tmp_path / name).write_text("mine")
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, tensors(1), {})
    store.save(2, tensors(2), {})
    assert store.rounds() == [2]
    assert all((tmp_path / name).exists() for name in names)


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, tensors(1), {})
    newest = store.save(2, tensors(2), {})
    truncate(newest)
    checkpoint = store.load()
    assert (checkpoint.round, checkpoint.tensors["weight"][0, 0].item()) == (1, 1.0)
    assert str(newest) in caplog.text
    with pytest.raises(StorageError, match=re.escape(str(newest))):
        store.load(2)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_resumed_run_supersedes_later_checkpoints(tmp_path: Path, keep: int) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(10, tensors(10), {})
    truncate(store.save(20, tensors(20), {}))
    resumed = CheckpointStore(tmp_path, keep=keep)
    resumed.save(11, tensors(11), {})
    assert resumed.rounds() == [10, 11][-keep:]
    assert resumed.load().round == 11


def test_nothing_to_load_is_a_storage_error(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "none")
    with pytest.raises(StorageError, match="none"):
        store.load()
    truncate(store.save(3, tensors(3), {}))
    with pytest.raises(StorageError, match="3"):
        store.load()
    with pytest.raises(StorageError, match="round 4"):
        store.load(4)


def test_impossible_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="-1"):
        CheckpointStore(tmp_path).save(-1, tensors(0), {})
    with pytest.raises(ValueError, match="not 0"):
        CheckpointStore(tmp_path, keep=0)
    with pytest.raises(ValueError, match="-2"):
        ClientStore(tmp_path).save(-2, 1, tensors(0), {})


# A limit on the size of a file makes the kernel refuse a write half-way, as a full disk does.
FULL_DISK = """
import resource, signal, sys, torch
from flwr_splitmix.runs.checkpoints import CheckpointStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))
store = CheckpointStore(sys.argv[1], keep=1)
store.save(1, {"weight": torch.arange(10.0)}, {"seed": 3})
try:
    store.save(2, {"weight": torch.zeros(100_000)}, {})
except OSError as error:
    print("refused", error.errno)
"""


def test_a_full_disk_leaves_the_last_good_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert process.stdout.startswith("refused")
    assert [file.name for file in tmp_path.iterdir()] == ["round-000001.safetensors"]
    checkpoint = CheckpointStore(tmp_path).load()
    assert checkpoint.meta == {"seed": 3}
    assert torch.equal(checkpoint.tensors["weight"], torch.arange(10.0))


def test_a_client_loads_its_newest_state_up_to_a_round(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for number in (2, 5, 9):
        file = store.save(7, number, tensors(number), {"at": number})
    store.save(8, 6, tensors(-1), {})
    assert file == tmp_path / "7" / "round-000009.safetensors"
    for at_most, expected in [(2, 2), (4, 2), (5, 5), (8, 5), (100, 9), (None, 9)]:
        state = store.load(7, at_most)
        assert state is not None
        number, loaded, meta = state
        assert (number, meta) == (expected, {"at": expected})
        assert torch.equal(loaded["weight"], tensors(expected)["weight"])
    assert store.load(7, at_most=1) is None
    assert store.load(9, at_most=None) is None


def flip(file: Path) -> None:
    """Turn one bit of the tensors' bytes, which end the file."""
    content = bytearray(file.read_bytes())
    content[-3] ^= 64
    file.write_bytes(bytes(content))


def test_a_flipped_bit_of_a_checkpoint_means_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Loaded, it would make a run's loss rise from 1.05 to 1.47, or NaN."""
    store = CheckpointStore(tmp_path)
    store.save(1, tensors(1), {})
    newest = store.save(2, tensors(2), {})
    flip(newest)
    assert store.load().round == 1
    assert f"cannot read {newest}: its bytes have changed since it was written" in caplog.text


def test_a_flipped_bit_of_a_clients_state_means_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ClientStore(tmp_path)
    store.save(0, 1, tensors(1), {})
    flip(store.save(0, 2, tensors(2), {}))
    state = store.load(0, at_most=2)
    assert state is not None
    assert (state[0], state[1]["weight"][0, 0].item()) == (1, 1.0)
    assert "its bytes have changed since it was written" in caplog.text


def test_a_damaged_client_state_falls_back_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ClientStore(tmp_path)
    store.save(0, 1, tensors(1), {})
    damaged = store.save(0, 2, tensors(2), {})
    truncate(damaged)
    state = store.load(0, at_most=2)
    assert state is not None
    assert state[0] == 1
    assert str(damaged) in caplog.text


def test_states_after_the_resumed_round_are_dropped(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for index in (0, 1):
        for number in (2, 5, 9):
            store.save(index, number, tensors(number), {})
    store.drop_after(0, 5)
    store.drop_after(3, 5)  # a client that never trained
    assert saved_rounds(tmp_path / "0") == [2, 5]
    assert saved_rounds(tmp_path / "1") == [2, 5, 9]


@pytest.mark.parametrize(
    ("saved", "kept_rounds", "remaining"),
    [
        ([1, 2, 3, 4], [2, 4], [2, 4]),  # took part in every round
        ([1, 3, 7], [5, 6], [3, 7]),  # last took part before both checkpoints
        ([1, 3, 7], [3, 7], [3, 7]),
        ([1, 3], [5, 10], [3]),  # one state serves both
        ([4, 6], [2, 5], [4, 6]),  # no state before the older checkpoint
        ([4, 6, 8], [2], [8]),  # only the newest, for the checkpoint to come
        ([4, 6, 8], [], [8]),
        ([4, 6, 8], [100, 5], [4, 8]),  # the order of the rounds does not matter
        ([], [5], []),
    ],
)
def test_pruning_keeps_what_the_checkpoints_need(
    tmp_path: Path, saved: list[int], kept_rounds: list[int], remaining: list[int]
) -> None:
    store = ClientStore(tmp_path)
    for number in saved:
        store.save(0, number, tensors(number), {})
    store.prune(0, kept_rounds)
    assert saved_rounds(tmp_path / "0") == remaining


def saved_rounds(path: Path) -> list[int]:
    return sorted(int(file.stem.removeprefix("round-")) for file in path.glob("*"))


def test_a_round_between_two_checkpoints_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(5, tensors(5), {})
    for number in (6, 7):
        store.save_between(number, tensors(number), {"at": number})
        assert store.rounds() == [5, number]
    assert store.load().round == 7
    assert store.load().meta == {"at": 7}
    assert store.load(7).tensors["weight"][0, 0] == 7
    assert store.load(5).round == 5
    store.save(10, tensors(10), {})
    assert store.rounds() == [5, 10]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_round_between_means_the_checkpoint_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not waited for, and may be half there after a loss of power."""
    store = CheckpointStore(tmp_path)
    store.save(5, tensors(5), {})
    truncate(store.save_between(7, tensors(7), {}))
    assert store.load().round == 5
    assert "between-000007.safetensors" in caplog.text
    store.save_between(6, tensors(6), {})
    assert store.rounds() == [5, 6]


def test_a_round_between_becomes_a_checkpoint_when_a_run_ends_early(
    tmp_path: Path, flushed: list[Path]
) -> None:
    store = CheckpointStore(tmp_path)
    store.keep_between()
    for number in (5, 10):
        store.save(number, tensors(number), {})
    between = store.save_between(12, tensors(12), {})
    assert between not in flushed
    flushed.clear()
    store.keep_between()
    assert flushed == [between, tmp_path]  # the new name, too, before older checkpoints go
    store.keep_between()
    assert store.rounds() == [10, 12]
    assert {file.name for file in tmp_path.iterdir()} == {
        "round-000010.safetensors",
        "round-000012.safetensors",
    }


def test_what_a_crash_has_left_between_gives_way_to_a_newer_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    file = store.save_between(9, tensors(9), {})
    content = file.read_bytes()
    store.save(10, tensors(10), {})
    file.write_bytes(content)
    store.keep_between()
    assert store.load().round == 10
    store.save(15, tensors(15), {})
    assert store.rounds() == [10, 15]


def test_a_run_that_has_stored_none_says_when_one_is_stored(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(StorageError, match="none is there: one is written every checkpoint-every"):
        store.load()
