"""A run's states on a node are the run's own, whatever runs the tickets of others name."""

from __future__ import annotations

import logging
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.node.owner import OWNER_FILE
from flwr_splitmix.links.node.state import ContextStore, forget_runs, open_store
from flwr_splitmix.mixers import FullShare
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.testing.toy import Toy
from tests.links.node.worst_server import TICKET, TOY, Node, noisy

OTHERS = "another run's"
KEY = TICKET.state_key


def node_of(folder: Path, flower_run: int, limit: float | None) -> Node:
    config = {} if limit is None else {"max-epsilon": limit}
    node = Node(folder, config, TOY if limit else Toy(1, batch_norm=False, examples=12, tests=6))
    node.run_id = flower_run
    return node


def states(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.safetensors"))


@pytest.mark.parametrize("limit", [None, 100.0])
@pytest.mark.parametrize(
    ("own", "named", "why"),
    [
        ("", "flwr-77", "names run flwr-77, as a node names .* by its number, and this is flwr-78"),
        ("psl-1", "psl-1", "states of run psl-1 on this node belong to another run: give this one"),
    ],
)
@pytest.mark.parametrize("state_round", [0, 1])
def test_a_run_neither_gets_nor_deletes_the_states_of_another_that_it_names(
    own: str, named: str, why: str, state_round: int, limit: float | None, tmp_path: Path
) -> None:
    node = node_of(tmp_path, 77, limit)
    node.begin(run=own, arrays=node.toy.lower().state_dict())
    plan = [noisy() if limit else FullShare().to_wire()]
    reply = node.step(plan).reply
    assert reply is not None
    gradient = [torch.ones_like(reply["smashed"][0])]
    node.step(plan, 1, gradient=gradient)
    node.end()
    weights, before = node.client.weights(), states(tmp_path)
    other = node_of(tmp_path, 78, limit)
    with pytest.raises(LinkError, match=why):
        other.begin(
            run=named, state_key=OTHERS, server_round=state_round + 1, state_round=state_round
        )
    assert states(tmp_path) == before == [f"{own or 'flwr-77'}/0/round-000001.safetensors"]
    node = node_of(tmp_path, 77, limit)
    description = node.begin(
        run=own, server_round=2, state_round=1, arrays=node.toy.lower().state_dict()
    )
    assert description["state-round"] == 1
    assert all(torch.equal(weights[name], new) for name, new in node.client.weights().items())
    node.end(finish=False)


def node_context(folder: Path, run_id: int = 5) -> Context:
    return Context(run_id, 9, {"state-dir": str(folder), "partition-id": 0}, RecordDict(), {})


@pytest.mark.parametrize("run", ["flwr-6", "flwr-55", "FLWR-5", "flwr-05"])
def test_only_the_node_itself_names_runs_of_flower(run: str, tmp_path: Path) -> None:
    """A folder that stands before the run begins would keep it out."""
    with pytest.raises(LinkError, match=f"names run {run}, .* and this is flwr-5: give the run an"):
        open_store(run, KEY, node_context(tmp_path))
    assert list(tmp_path.iterdir()) == []
    for allowed in ("", "flwr-5", "flwr-mine"):
        open_store(allowed, KEY, node_context(tmp_path))
    assert {folder.name for folder in tmp_path.iterdir()} == {"flwr-5", "flwr-mine"}


def test_a_ticket_without_a_key_gets_no_states(tmp_path: Path) -> None:
    """It is what a server of an earlier version sends."""
    with pytest.raises(LinkError, match=r"no state_key, .*; install the same flwr-splitm"):
        open_store("psl-1", "", node_context(tmp_path))


def test_states_without_an_owner_are_nobodys(tmp_path: Path) -> None:
    """The first ticket that names them may be anybody's."""
    ClientStore(tmp_path / "psl-1").save(0, 1, {}, {})
    why = "run psl-1 on this node do not say whose they are, .* remove psl-1 from the node's state-"
    with pytest.raises(LinkError, match=why):
        open_store("psl-1", KEY, node_context(tmp_path))
    assert states(tmp_path) == ["psl-1/0/round-000001.safetensors"]
    (tmp_path / states(tmp_path)[0]).unlink()
    open_store("psl-1", KEY, node_context(tmp_path))
    with pytest.raises(LinkError, match="belong to another run"):
        open_store("psl-1", OTHERS, node_context(tmp_path))


def test_of_nodes_that_begin_at_once_in_one_folder_one_run_is_the_owner(tmp_path: Path) -> None:
    def admitted(number: int) -> str:
        key = str(number % 4)
        try:
            store = open_store("psl-1", key, node_context(tmp_path))
        except LinkError:
            return ""
        assert isinstance(store, ClientStore)
        store.save(number, 1, {}, {})
        return key

    with ThreadPoolExecutor(8) as threads:
        owners = list(threads.map(admitted, range(32)))
    (owner,) = set(owners) - {""}
    assert owners.count(owner) == 8
    assert {path.name for path in (tmp_path / "psl-1").iterdir() if path.is_file()} == {OWNER_FILE}


def test_no_file_of_the_node_holds_the_key(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.begin(state_key="4f" * 16)
    node.end()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"4f4f4f4f" in path.read_bytes() for path in files)
    owner = (tmp_path / "r" / OWNER_FILE).read_text()
    assert re.fullmatch("[0-9a-f]{64}", owner)
    assert (tmp_path / "r" / OWNER_FILE).stat().st_mode & 0o777 == 0o600


def test_flowers_context_needs_no_owner() -> None:
    """Only messages of the same of Flower's runs come with it."""
    context = Context(5, 9, {"state-dir": ""}, RecordDict(), {})
    assert isinstance(open_store("psl-1", KEY, context), ContextStore)


def test_the_nodes_log_names_the_run_whose_states_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr.splitmix")
    for number in (1, 2):
        node = Node(tmp_path)
        node.begin(server_round=number, state_round=number - 1, kept_rounds=[0, 1, 2])
        node.end()
    assert "deleted" not in caplog.text
    node.begin(server_round=1, state_round=0)
    node.end(finish=False)
    assert "client 0: run r goes on after round 0; 2 states after it are deleted" in caplog.text
    long_ago = time.time() - 31 * 86_400
    os.utime(tmp_path / "r", (long_ago, long_ago))
    forget_runs(tmp_path)
    assert not (tmp_path / "r").exists()
    assert "states of run r, not used for 30 days, are deleted" in caplog.text
