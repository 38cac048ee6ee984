"""A node's state survives its process: on disk by run and round, or in Flower's context."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import Context, RecordDict

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.node import state as node_state
from flwr_splitmix.links.node.state import ContextStore, forget_runs, open_store
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.storage import OtherFormError

TENSORS = {"w": torch.randn(2, 3).bfloat16(), "count": torch.tensor(4)}
KEY = "the run's own"
META = {"drawn": 7, "optimizer": {"groups": [{"lr": 0.1, "betas": [0.9, 0.99]}]}}


def context(**node_config: Any) -> Context:
    return Context(run_id=5, node_id=9, node_config=node_config, state=RecordDict(), run_config={})


def check_same(stored: Any, expected_round: int) -> None:
    server_round, tensors, meta = stored
    assert (server_round, meta) == (expected_round, META)
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], t) for name, t in TENSORS.items())


def test_states_of_a_run_are_found_by_the_next_process(tmp_path: Path) -> None:
    config = {"state-dir": str(tmp_path / "deep" / "down")}
    store = open_store("psl-1", KEY, context(**config))
    store.save(3, 2, TENSORS, META)
    check_same(open_store("psl-1", KEY, context(**config)).load(3), 2)
    assert open_store("psl-2", KEY, context(**config)).load(3) is None
    assert (tmp_path / "deep" / "down").stat().st_mode & 0o077 == 0


def test_without_a_run_id_flowers_own_separates_runs(tmp_path: Path) -> None:
    open_store("", KEY, context(**{"state-dir": str(tmp_path)})).save(3, 2, TENSORS, META)
    assert [path.name for path in tmp_path.iterdir()] == ["flwr-5"]


def test_the_default_is_below_the_home_of_splitmix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPLITMIX_HOME", str(tmp_path))
    open_store("psl-1", KEY, context())
    assert (tmp_path / "nodes" / "psl-1").is_dir()


def test_an_environments_home_of_an_unknown_user_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITMIX_HOME", "~nouser/states")
    with pytest.raises(LinkError, match="SPLITMIX_HOME is '~nouser/states', and this"):
        open_store("psl-1", KEY, context())


@pytest.mark.parametrize(
    "run",
    [
        "../other", "a/b", ".hidden", "a\0b", "x" * 200, "a b",
        # A directory in the place of one of these files keeps the node from its own ledger.
        "privacy-ledger-0.jsonl", "first-weights-0.jsonl", "audit-1.JSONL",
    ],
)  # fmt: skip
def test_a_server_cannot_name_another_directory(run: str, tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="the server's run id is not a name of a directory"):
        open_store(run, KEY, context(**{"state-dir": str(tmp_path)}))
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_the_context_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")
    store = open_store("psl-1", KEY, context(**{"state-dir": str(tmp_path / "file")}))
    assert isinstance(store, ContextStore)
    assert "cannot be written" in caplog.text
    assert isinstance(open_store("psl-1", KEY, context(**{"state-dir": ""})), ContextStore)


def test_the_context_keeps_the_newest_state_of_its_client() -> None:
    flower = context()
    ContextStore(flower, "psl-1").save(3, 1, {}, {})
    ContextStore(flower, "psl-1").save(3, 2, TENSORS, META)
    store = ContextStore(flower, "psl-1")
    check_same(store.load(3), 2)
    check_same(store.load(3, at_most=2), 2)
    assert store.load(3, at_most=1) is None
    assert store.load(4) is None
    store.drop_after(3, 2)
    check_same(store.load(3), 2)
    store.drop_after(3, 1)
    assert store.load(3) is None


def test_the_context_keeps_the_state_of_one_run() -> None:
    """Two starts in one Flower run share the context, and each begins with no state."""
    flower = context()
    ContextStore(flower, "psl-1").save(3, 2, TENSORS, META)
    other = ContextStore(flower, "psl-2")
    assert other.load(3) is None
    other.drop_after(3, 2)
    assert ContextStore(flower, "psl-1").load(3) is None


def test_a_state_too_large_for_the_context_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_state, "CONTEXT_BYTES", 100)
    flower = context()
    with pytest.raises(OSError, match="at most 100 are allowed; give the node a state-dir"):
        ContextStore(flower, "psl-1").save(0, 1, {"w": torch.zeros(1000)}, {})
    assert ContextStore(flower, "psl-1").load(0) is None


def test_runs_long_forgotten_are_removed_and_nothing_else(tmp_path: Path) -> None:
    long_ago = time.time() - 31 * 86_400
    for run in ("old", "mixed", "new"):
        ClientStore(tmp_path / run).save(0, 1, TENSORS, META)
    (tmp_path / "mixed" / "0" / "notes.txt").write_text("not ours")
    (tmp_path / "file").write_text("not ours")
    for name in ("old", "mixed", "file"):
        os.utime(tmp_path / name, (long_ago, long_ago))
    forget_runs(tmp_path)
    remaining = sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()
    )
    assert remaining == ["file", "mixed/0/notes.txt", "new/0/round-000001.safetensors"]
    assert not (tmp_path / "old").exists()


def test_a_start_without_a_run_is_forgotten_earlier_but_not_while_it_may_go_on(
    tmp_path: Path,
) -> None:
    """Nothing resumes it, and each would leave the states of its clients for 30 days."""
    ages = {"unnamed-" + "0a" * 8: 4, "unnamed-" + "1b" * 8: 2, "unnamed-mine": 4, "psl-1": 4}
    for run, days in ages.items():
        ClientStore(tmp_path / run).save(0, 1, TENSORS, META)
        then = time.time() - days * 86_400
        os.utime(tmp_path / run, (then, then))
    open_store("unnamed-" + "2c" * 8, KEY, context(**{"state-dir": str(tmp_path)}))
    remaining = {path.name for path in tmp_path.iterdir()}
    assert remaining == {"unnamed-" + "1b" * 8, "unnamed-" + "2c" * 8, "unnamed-mine", "psl-1"}


def test_a_run_that_is_still_used_is_not_forgotten(tmp_path: Path) -> None:
    """The run's folder is looked at, and saving a state changes only the client's in it."""
    node = context(**{"state-dir": str(tmp_path)})
    open_store("psl-1", KEY, node).save(3, 2, TENSORS, META)
    long_ago = time.time() - 31 * 86_400
    os.utime(tmp_path / "psl-1", (long_ago, long_ago))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_state, "FORGET_DAYS", 40)
        open_store("psl-1", KEY, node)
    check_same(open_store("psl-1", KEY, node).load(3), 2)


def test_a_flipped_bit_in_the_context_means_that_the_client_begins_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flower = context()
    ContextStore(flower, "psl-1").save(3, 2, TENSORS, META)
    (record,) = flower.state.config_records.values()
    content = bytearray(cast(bytes, record["frame"]))
    content[-3] ^= 64
    record["frame"] = bytes(content)
    assert ContextStore(flower, "psl-1").load(3) is None
    assert "client 3: its state in Flower's context is damaged; it begins anew" in caplog.text


def test_a_state_in_the_context_without_a_digest_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing would tell what has happened to its bytes."""
    flower = context()
    monkeypatch.setattr(node_state, "DIGEST", "another-digest")
    ContextStore(flower, "psl-1").save(3, 2, TENSORS, META)
    monkeypatch.undo()
    with pytest.raises(OtherFormError, match="client 3: its state in Flower's context has no dige"):
        ContextStore(flower, "psl-1").load(3)


@pytest.mark.parametrize("chosen", [False, 7, 0.5])
def test_a_state_dir_that_is_no_path_is_refused(chosen: Any) -> None:
    """Otherwise a folder of that name would be made where the SuperNode is started."""
    with pytest.raises(LinkError, match=f"state-dir is {chosen!r}; give the path of a folder, or"):
        open_store("psl-1", KEY, context(**{"state-dir": chosen}))


def test_a_state_that_cannot_be_gone_on_with_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"state-dir": str(tmp_path)}
    open_store("psl-1", KEY, context(**config)).save(3, 2, TENSORS, META)

    def read_only(path: Path) -> None:  # whoever runs the tests may be allowed to write anywhere
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", read_only)
    reason = r"cannot be written \(Read-only file system\), and holds a state of this run"
    with pytest.raises(
        LinkError, match=rf"folder of states \(state-dir, .*{reason}: make it writable"
    ):
        open_store("psl-1", KEY, context(**config))
    assert isinstance(open_store("psl-2", KEY, context(**config)), ContextStore)


def test_a_user_without_a_home_reads_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPLITMIX_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a home
    with pytest.raises(LinkError, match="SPLITMIX_HOME is not set, and this user has no home"):
        open_store("psl-1", KEY, context())
