"""A node's ledger against the worst server: over attempts, rounds and runs, and on a bad disk."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.clients import ClientError, PrivacyBudget
from flwr_splitmix.clients.guards.first_weights import FirstWeights
from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import FullShare, WeightedShare
from flwr_splitmix.runs.checkpoints import ClientStore
from tests.links.node.worst_server import TICKET, TOY, Node, noisy, refused


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_attempts_that_the_ledger_holds_are_not_charged_again(tmp_path: Path, lost: bool) -> None:
    """The file has them, unless it is younger; otherwise each would be charged twice, in full."""
    node = Node(tmp_path / "node", {"max-epsilon": 100.0})
    share = noisy(WeightedShare(lam=0.5), clamp_labels=False)
    node.begin()
    for number in range(2):
        assert node.step([share], number).reply
    once = node.slope()
    node.end(finish=False)
    if lost:
        (node.folder / "privacy-ledger-0.jsonl").unlink()
    # Its state is that before the lost round, so a later round repeats the same batches.
    node.begin(server_round=2, attempt=1, earlier=[2])
    for number in range(2):
        assert node.step([share], number).reply
    full = 4 * once  # whatever the masks were: of half of everything the cost is a quarter
    assert node.slope() == pytest.approx(full + once if lost else 2 * once)
    node.end()
    # The next batch is another: the file has no attempt at it.
    node.begin(server_round=3, state_round=2, attempt=1, earlier=[1])
    assert node.step([share]).reply
    assert node.slope() == pytest.approx(full + once)


def test_an_attempt_below_zero_is_no_refund(node: Node) -> None:
    with pytest.raises(ClientError, match="the server's ticket has attempt -1"):
        node.begin(attempt=-1)


def test_a_run_without_a_name_is_that_of_flowers_number(node: Node) -> None:
    weights = TOY.lower().state_dict()
    others = {name: tensor + 1 for name, tensor in weights.items()}
    node.begin(run="", arrays=weights)
    node.end(finish=False)
    with pytest.raises(ClientError, match="the server sends other weights within the run"):
        node.begin(run="", arrays=others)
    node.run_id = 2
    node.begin(run="", arrays=others)
    node.end(finish=False)


def test_another_configuration_is_no_other_run(node: Node) -> None:
    """One more key would otherwise admit other weights, trained on the state of the same run."""
    weights = TOY.lower().state_dict()
    others = {name: tensor + 1 for name, tensor in weights.items()}
    node.begin(arrays=weights)
    node.end()
    node.run_config = {"more": 1}
    with pytest.raises(ClientError, match="the server sends other weights within the run"):
        node.begin(arrays=others, server_round=2, state_round=1)
    node.begin(arrays=weights, server_round=2, state_round=1)
    node.end()
    node.begin(arrays=others, run="another")
    node.end()


def test_a_run_that_began_without_weights_takes_none_later(node: Node) -> None:
    """The first ones that come do not count, after rounds with the node's own."""
    weights = TOY.lower().state_dict()
    node.begin(arrays=None)
    node.end()
    node.begin(arrays=None, server_round=2, state_round=1)
    node.end()
    with pytest.raises(ClientError, match="the server sends other weights within the run"):
        node.begin(arrays=weights, server_round=3, state_round=2)
    node.begin(arrays=weights, run="another")
    node.end()


def test_a_run_may_leave_its_weights_out_later(node: Node) -> None:
    weights = TOY.lower().state_dict()
    node.begin(arrays=weights)
    node.end()
    for number, arrays in ((2, None), (3, weights)):
        described = node.begin(arrays=arrays, server_round=number, state_round=number - 1)
        assert described["state-round"] == number - 1
        node.end()


def test_first_weights_count_whatever_configuration_the_server_names(tmp_path: Path) -> None:
    weights, others = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    FirstWeights.on_node(tmp_path, 0, "r:0a1b").check(weights, "a limit")
    first = FirstWeights.on_node(tmp_path, 0, "r:2c3d")
    with pytest.raises(ClientError, match="other weights within the run"):
        first.check(others, "a limit")
    first.check(weights, "a limit")


def test_an_epsilon_never_falls_whatever_round_or_run_the_server_names(node: Node) -> None:
    """Nor does `state_round=0`, or another run's id, get the same batch again at no new epsilon."""
    node.config["max-epsilon"] = 4.0
    spent: list[float] = []
    for changes in ({}, {"state_round": 0}, {"run": "another"}, {"run": "third"}, {}):
        node.begin(**changes)
        assert node.client.epsilon == pytest.approx(spent[-1] if spent else 0.0)
        assert node.step([noisy()]).reply
        spent.append(node.client.epsilon or 0.0)
        node.end(finish=False)
    assert (np.diff(spent) > 0).all()


def test_over_all_runs_a_node_stops_at_its_limit(node: Node) -> None:
    uploads = 0
    for run in range(40):
        node.begin(run=f"run-{run}")
        outcome = node.step([noisy()])
        assert outcome.reply is not None
        uploads += "smashed" in outcome.reply
        assert (node.client.epsilon or 0.0) <= 1.0
        node.end(finish=False)
    assert 0 < uploads < 40


def test_what_cannot_be_charged_on_the_disk_does_not_leave(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a full disk, each round would send the same batch at an unchanged epsilon."""
    node.begin()
    assert node.step([noisy()]).reply
    before = node.client.epsilon
    monkeypatch.setattr(os, "write", _no_space)
    refused(node.step([noisy()], 1), "audit log cannot be written (No space left on device)")
    monkeypatch.undo()
    assert node.client.epsilon == before
    node.end(finish=False)


def test_what_the_ledger_cannot_take_does_not_leave(node: Node) -> None:
    node.begin()
    assert node.step([noisy()]).reply
    ledger = node.folder / "privacy-ledger-0.jsonl"
    ledger.unlink()
    ledger.mkdir()
    refused(node.step([noisy()], 1), "privacy ledger cannot be written (Is a directory)")
    node.end(finish=False)


def _no_space(*arguments: Any) -> int:
    raise OSError(28, "No space left on device")


def test_without_a_place_for_the_ledger_nothing_leaves(tmp_path: Path) -> None:
    node = Node(tmp_path, {"max-epsilon": 1.0, "state-dir": ""})
    message = (
        r"\(the node has no state-dir\), and nothing is sent without it: give the node a state-"
    )
    with pytest.raises(LinkError, match=message):
        node.begin()


def test_an_audit_log_that_cannot_be_opened_names_the_key_and_no_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit-0.jsonl").mkdir()
    with pytest.raises(LinkError, match=r"written \(Is a directory\).*a state-dir that can be wri"):
        Node(tmp_path, {"max-epsilon": 1.0, "state-dir": str(tmp_path)}).begin()
    free = Node(tmp_path, {"state-dir": str(tmp_path)})
    free.begin()
    free.end(finish=False)
    assert "is not written down (Is a directory): a state-dir that can be written" in caplog.text


@pytest.mark.parametrize("client", [False, 0.0, -0.0])
def test_an_index_of_another_type_gets_no_ledger_of_its_own(node: Node, client: Any) -> None:
    """False, 0.0 and -0.0 instead of 0 would give a server the whole budget once more each."""
    with pytest.raises(LinkError, match="the server's ticket is for client"):
        node.begin(client=client)
    assert not list(node.folder.glob("*"))


def test_a_run_without_noise_stays_in_the_ledger_of_a_node(tmp_path: Path) -> None:
    """If the next run began at 0, "in all runs together" would not hold."""
    plain = Node(tmp_path / "node", {})
    plain.begin(replace(TICKET, run="plain"))
    assert plain.step([FullShare().to_wire()]).reply is not None
    plain.end()
    limited = Node(tmp_path / "node", {"max-epsilon": 8.0})
    limited.begin(replace(TICKET, run="noisy"))
    assert limited.step([noisy()]).reply == {"budget-spent": True}
    limited.end()


def test_a_ledger_in_a_file_is_not_written_again_with_every_state(node: Node) -> None:
    """With 500,000 records a client would write 20 MB more each round, which takes seconds."""
    node.config["max-epsilon"] = 8.0
    node.begin()
    assert node.step([noisy()]).reply
    spent = node.client.epsilon
    node.end()
    state = ClientStore(node.folder / "r").load(0)
    assert state is not None
    assert state[2]["privacy"] == {"spent": False}
    node.begin(server_round=2, state_round=1)
    assert node.client.epsilon == spent
    node.end(finish=False)


def test_what_is_only_in_a_file_that_is_gone_has_no_epsilon(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.options = {"privacy": PrivacyBudget()}
    node.begin()
    assert node.step([noisy()]).reply
    node.end()
    ledger = node.folder / "privacy-ledger-0.jsonl"
    ledger.unlink()
    ledger.mkdir()  # as on a bad disk: it cannot be opened
    node.begin(server_round=2, state_round=1)
    assert node.client.epsilon == math.inf
    node.end(finish=False)


def test_a_state_from_before_there_was_a_file_is_gone_on_with(tmp_path: Path) -> None:
    """Its ledger is in the state: of a node without a folder."""
    node = Node(tmp_path)
    node.options = {"privacy": PrivacyBudget()}
    ledger = node.folder / "privacy-ledger-0.jsonl"
    ledger.mkdir()
    node.begin()
    assert node.step([noisy()]).reply
    spent = node.client.epsilon
    assert spent
    node.end()
    node.begin(server_round=2, state_round=1)
    assert node.client.epsilon == spent
    node.end(finish=False)
