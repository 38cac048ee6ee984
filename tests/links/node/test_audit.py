"""What a node's audit log says of each round, and of a server that would spoil it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flwr_splitmix import adamw
from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.links.frames.wire import WIRE_DTYPES
from flwr_splitmix.links.node.audit import AuditLog
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.mixers import FullShare
from flwr_splitmix.privacy.journal import read_journal
from flwr_splitmix.server.messages import messages_to
from flwr_splitmix.strategies import PSL, SFL, USHAPE_STRATEGIES
from flwr_splitmix.testing.toy_texts import text_toy
from tests.links.fake_grid import FakeGrid, OnFakeGrid, text_app, toy_app
from tests.links.node.test_round import TOY, run
from tests.links.node.worst_server import TICKET, Node, noisy, refused


def test_the_audit_log_holds_shapes_and_no_number_of_the_data(node: Node) -> None:
    node.begin(TICKET)
    reply = node.step([noisy()], number=3).reply
    assert reply is not None
    node.end(finish=False)
    (entry,) = node.audit()
    assert (entry["run"], entry["round"], entry["step"], entry["client"]) == ("r", 1, 3, 0)
    smashed, labels = entry["sent"]
    assert (smashed["name"], smashed["shape"]) == ("smashed", list(reply["smashed"][0].shape))
    assert (labels["name"], labels["shape"]) == ("labels", list(reply["labels"][0].shape))
    assert entry["bytes"] == smashed["bytes"] + labels["bytes"]
    assert entry["share"] == [noisy()]
    assert 0 < entry["epsilon"] < 1


@pytest.mark.parametrize("wire", WIRE_DTYPES)
def test_the_audit_log_counts_what_travels(wire: str, tmp_path: Path) -> None:
    """As many bytes as they are once narrowed: with int4 a fourth."""
    grid = FakeGrid(toy_app(TOY), 1, **{"state-dir": str(tmp_path)})
    strategy = PSL(TOY.upper(), device="cpu", seed=7, evaluation="none", steps_per_round=1)
    strategy.link = OnFakeGrid(StreamLink(address="127.0.0.1:0", wire_dtype=wire), grid)
    strategy.start(None, to_arrays(TOY.lower().state_dict()), 1)  # type: ignore[arg-type]
    grid.wait()
    lines = [line for line in read_journal(tmp_path / "audit-0.jsonl") if line["step"] is not None]
    assert sum(line["bytes"] for line in lines) == strategy.rows[0]["uplink_bytes"]
    smashed, labels = lines[0]["sent"]
    assert smashed["dtype"] == ("float64" if wire == "keep" else wire)
    assert labels["dtype"] == "int64"


def test_a_server_cannot_end_the_audit_log_with_a_long_name(node: Node) -> None:
    """A line that long makes the log unreadable, so that the node would send nothing any more."""
    node.begin()
    refused(node.ask("x" * (1 << 20)), "is not an exchange")
    node.end()
    assert len(node.audit()[-1]["exchange"]) == 500
    node.begin()
    assert node.step([noisy()]).reply
    node.end()


def test_a_servers_name_of_a_run_is_one_line_of_the_audit_log(node: Node) -> None:
    """A refused name would otherwise bring what moves a terminal's cursor."""
    ticket = replace(TICKET, link="stream", run="\x1b[2J" + "x" * 10_000)
    request = messages_to([9], RecordDict({RECORD: ticket.to_record()}), "train", in_run=False)[0]
    node_context = Context(5, 9, node.config, RecordDict(), {})
    reply = toy_app(TOY)(request, node_context)
    assert "run id is not a name" in str(reply.content.config_records[RECORD]["error"])
    assert node.audit()[-1]["run"] == r"\x1b[2J" + "x" * 493


def test_a_batch_in_parts_is_priced_as_one_and_each_part_is_written_down(node: Node) -> None:
    node.begin(TICKET)
    node.step([noisy()])
    price = node.client.epsilon
    node.end()
    node.begin(replace(TICKET, server_round=2, state_round=1))
    before = node.releases
    arguments = {"number": 0, "progress": 0.0, "plan": [noisy()], "parts": 2}
    replies = [node.ask("encode_part", part=part, **arguments).reply for part in range(2)]
    assert price is not None
    assert 0 < price <= (node.client.epsilon or 0) < 2.1 * price
    assert node.releases == before + 1
    refused(node.ask("encode_part", part=1, **arguments), "a part of a batch out of turn")
    node.end(finish=False)
    first, second, third = node.audit()[-3:]
    assert [(line["step"], line.get("part")) for line in (first, second)] == [(0, 0), (0, 1)]
    assert first["share"] == second["share"] == [noisy()]
    assert first["epsilon"] == second["epsilon"]
    for line, reply in zip((first, second), replies, strict=True):
        assert reply is not None
        assert line["sent"][0]["shape"] == list(reply["smashed"][0].shape)
    assert "out of turn" in third["refused"]


@pytest.mark.parametrize("kind", ["federated", "benchmark"])
def test_an_evaluations_line_says_which_test_data_it_took(node: Node, kind: str) -> None:
    """An operator can tell the node's own test data from the benchmark's."""
    node.config = {"partition-id": 0, "state-dir": str(node.folder)}
    node.options = {"benchmark_data": TOY.data(0)}
    node.begin()
    assert node.ask("encode_test", kind=kind, start=0, stop=4).reply
    node.step([FullShare().to_wire()])
    refused(node.ask("encode_test", kind=kind, start=0, stop=10**13), "there are")
    node.end(finish=False)
    test_line, step_line, refused_line = node.audit()
    assert (test_line["exchange"], test_line["kind"], test_line["start"], test_line["stop"]) == (
        "encode_test", kind, 0, 4,
    )  # fmt: skip
    assert {"kind", "start", "stop"}.isdisjoint(step_line)
    assert (refused_line["kind"], refused_line["start"], refused_line["stop"]) == (kind, 0, 10**13)
    assert "there are" in refused_line["refused"]


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ({"kind": "x" * 41, "start": 2**53 + 1, "stop": -1}, {}),
        ({"kind": ["federated"], "start": True, "stop": 1.0}, {}),
        (
            {"kind": "\x1b[2J", "start": 0, "stop": 2**53},
            {"kind": r"\x1b[2J", "start": 0, "stop": 2**53},
        ),
    ],
    ids=["large", "kinds", "control"],
)
def test_an_evaluations_arguments_cannot_spoil_the_audit_log(
    node: Node, arguments: dict[str, Any], written: dict[str, Any]
) -> None:
    node.begin()
    assert node.ask("encode_test", **arguments).reply is None
    node.end(finish=False)
    (line,) = node.audit()
    assert {name: line[name] for name in ("kind", "start", "stop") if name in line} == written


def test_in_the_u_shape_an_evaluations_lines_say_which_test_data_it_took(tmp_path: Path) -> None:
    toy = text_toy("NoPeekSL", clients=1, tests=6)
    grid = FakeGrid(text_app(toy, adamw(0.01)), 1, **{"state-dir": str(tmp_path)})
    strategy = USHAPE_STRATEGIES["NoPeekSL"](
        toy.server(), device="cpu", seed=7, optimizer=adamw(0.01), evaluation="federated"
    )
    strategy.link = OnFakeGrid(StreamLink(address="127.0.0.1:0", run="u-1"), grid)
    strategy.start(None, to_arrays(toy.clients_for()[0].weights()), 1)  # type: ignore[arg-type]
    grid.wait()
    lines = read_journal(tmp_path / "audit-0.jsonl")
    exchanges = [
        tuple(line.get(name) for name in ("exchange", "kind", "start", "stop")) for line in lines
    ]
    assert [one for one in exchanges if one[0] == "encode_test"] == [
        ("encode_test", "federated", 0, 4),
        ("encode_test", "federated", 4, 6),
    ]
    assert [one for one in exchanges if one[0] == "score"] == [("score", "federated", None, None)]
    assert {one[1:] for one in exchanges if one[0] in ("encode", "decode")} == {(None, None, None)}


def test_a_round_begins_and_ends_in_the_audit_log(tmp_path: Path) -> None:
    """What a node says of itself at first, and what it releases at the end, leave it too."""
    grid = FakeGrid(toy_app(TOY), 1, **{"state-dir": str(tmp_path)})
    strategy = SFL(TOY.upper(), device="cpu", seed=7, evaluation="none", steps_per_round=1)
    strategy.link = OnFakeGrid(StreamLink(address="127.0.0.1:0", run="sfl-1"), grid)
    lower = TOY.lower().state_dict()
    strategy.start(None, to_arrays(lower), 1)  # type: ignore[arg-type]
    grid.wait()
    first, *_, last = read_journal(tmp_path / "audit-0.jsonl")
    assert (first["exchange"], last["exchange"]) == ("attach", "release")
    assert first["to"].startswith("127.0.0.1:")
    assert last["to"] == "the SuperLink"  # it is the reply to Flower's message
    assert "num-examples" in {item["name"] for item in first["sent"]}
    shapes = {item["name"]: tuple(item["shape"]) for item in last["sent"] if "shape" in item}
    assert shapes == {f"lower-segment.{name}": tuple(value.shape) for name, value in lower.items()}


def test_a_node_whose_audit_log_is_full_still_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the log must not take the place of an answer that the server waits for."""

    def full(*_: Any, **__: Any) -> None:
        raise LinkError("this node's audit log cannot be written (No space left on device)")

    monkeypatch.setattr(AuditLog, "write", full)
    monkeypatch.setattr(AuditLog, "refuse", full)
    with pytest.raises(LinkError, match=r"client 0: .*No space left on device"):
        run(tmp_path)
