"""The secret from which a node with a mixer of its own draws the order of its examples."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.node.order import SECRET_FILE, order_key
from flwr_splitmix.links.node.state import open_store


def context() -> Context:
    return Context(run_id=5, node_id=9, node_config={}, state=RecordDict(), run_config={})


def test_every_process_of_a_node_has_the_same_key_and_each_run_and_client_another(
    tmp_path: Path,
) -> None:
    key = order_key(tmp_path, context(), "a", 0)
    assert len(key) == 32
    assert order_key(tmp_path, context(), "a", 0) == key
    others = {order_key(tmp_path, context(), run, index) for run, index in [("b", 0), ("a", 1)]}
    assert len(others | {key}) == 3


def test_two_nodes_have_different_keys_in_the_same_run(tmp_path: Path) -> None:
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    first, second = (order_key(folder, context(), "a", 0) for folder in folders)
    assert first != second


def test_processes_that_begin_at_once_agree_on_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: order_key(tmp_path, context(), "a", 0), range(32)))
    assert len(keys) == 1
    assert [file.name for file in tmp_path.iterdir()] == [SECRET_FILE]


def test_only_the_owner_may_read_the_secret(tmp_path: Path) -> None:
    order_key(tmp_path, context(), "a", 0)
    assert (tmp_path / SECRET_FILE).stat().st_mode & 0o777 == 0o600


def test_no_run_of_a_server_can_take_the_secrets_place(tmp_path: Path) -> None:
    node_context = Context(5, 9, {"state-dir": str(tmp_path)}, RecordDict(), {})
    with pytest.raises(LinkError, match="not a name of a directory"):
        open_store(SECRET_FILE, "key", node_context)


def test_without_a_folder_flowers_context_has_the_secret() -> None:
    node_context = context()
    assert order_key(None, node_context, "a", 0) == order_key(None, node_context, "a", 0)
    assert order_key(None, node_context, "a", 0) != order_key(None, context(), "a", 0)


def test_a_folder_without_the_right_to_write_leaves_the_secret_to_the_context(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node_context, missing = context(), tmp_path / "none" / "none"
    (tmp_path / "none").write_text("a file, not a folder")
    assert order_key(missing, node_context, "a", 0) == order_key(None, node_context, "a", 0)
    assert "the order of this node's examples is of this run only" in caplog.text


def test_a_damaged_secret_is_named_and_not_quoted(tmp_path: Path) -> None:
    (tmp_path / SECRET_FILE).write_bytes(b"short")
    with pytest.raises(LinkError, match="is damaged: delete it") as refused:
        order_key(tmp_path, context(), "a", 0)
    assert "short" not in str(refused.value)
