"""What a node refuses before it has a client: each is a line of its audit log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict
from typer.testing import CliRunner

from flwr_splitmix import SplitClientApp
from flwr_splitmix.cli import app as cli
from flwr_splitmix.links import LinkError
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.privacy.journal import read_journal
from flwr_splitmix.server.messages import messages_to
from tests.node_messages import TICKET, context, message, no_client

REJECTED: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"version": 1}, "the server speaks version 1 of tickets, this node 2"),
    "values": ({"mood": "good"}, "other values than this node knows"),
    "type": ({"client": True}, "a client that is not of type int"),
    "wait": ({"timeout": float("inf")}, "a timeout of inf s; it must be from 0 to 86400"),
    "client": ({"client": 5}, "the server's ticket is for client 5, and this node's partition-id"),
    "link": ({"link": "telepathy"}, "knows no link 'telepathy'; allowed: 'ray', 'stream'"),
    "ray": ({"link": "ray"}, "link 'ray' is for simulations"),
    "list": ({"run_config": "[1]"}, "a run_config that is not a run configuration"),
    "digits": ({"run_config": "9" * 5000}, "a run_config that is not a run configuration"),
    "deep": ({"run_config": "[" * 100_000}, "a run_config that is not a run configuration"),
    "inside": ({"run_config": '{"a": [[1]]}'}, "a run_config that is not a run configuration"),
    "text": ({"run_config": "lr=0.1"}, "a run_config that is not a run configuration"),
}
"""Values of a ticket by which a node rejects it, and part of the reason."""


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("case", REJECTED)
def test_each_rejected_ticket_is_a_line_of_the_audit_log(
    case: str, kind: str, tmp_path: Path
) -> None:
    """Also those that are refused before there is a client. None raises out of the app."""
    changes, why = REJECTED[case]
    ticket = replace(TICKET, link="stream", address="127.0.0.1:9", tls=False, run="r")
    record = ConfigRecord({**dict(ticket.to_record()), **changes})
    request = messages_to([9], RecordDict({RECORD: record}), kind, in_run=False)[0]
    node_context = context(**{"partition-id": 0, "state-dir": str(tmp_path)})
    error = SplitClientApp(no_client)(request, node_context).content.config_records[RECORD]["error"]
    assert why in str(error)
    (line,) = read_journal(tmp_path / "audit-0.jsonl")
    facts = (line["run"], line["round"], line["client"], line["to"])
    assert facts == ("r", 1, 0, "127.0.0.1:9")
    assert (line["exchange"], line["refused"]) == ("round", error)


def test_an_invalid_policy_and_another_servers_message_are_lines_too(tmp_path: Path) -> None:
    config = {"partition-id": 0, "state-dir": str(tmp_path)}
    app = SplitClientApp(no_client)
    app(message("train", replace(TICKET, link="stream")), context(**config, **{"max-epsilon": -1}))
    app(message("train.finish", TICKET), context(**config))
    with pytest.raises(LinkError, match="carries no split-learning ticket"):
        app(message("train"), context(**config))
    reasons = [line["refused"] for line in read_journal(tmp_path / "audit-0.jsonl")]
    for part, reason in zip(
        ("max-epsilon", "link 'ray'", "no split-learning ticket"), reasons, strict=True
    ):
        assert part in reason


@pytest.mark.parametrize("number", [0.5, -3, 2**60])
def test_what_a_message_says_of_itself_cannot_spoil_the_log(number: float, tmp_path: Path) -> None:
    odd: dict[str, Any] = {
        "version": 2,
        "run": "\x1b[2J" + "x" * 10_000,
        "server_round": number,
        "address": [1, 2],
    }
    request = messages_to([9], RecordDict({RECORD: ConfigRecord(odd)}), "train", in_run=False)[0]
    SplitClientApp(no_client)(request, context(**{"partition-id": 0, "state-dir": str(tmp_path)}))
    (line,) = read_journal(tmp_path / "audit-0.jsonl")
    assert (line["run"][:8], len(line["run"])) == ("\\x1b[2Jx", 500)
    assert (line["round"], line["to"]) == (0, "")
    for one in (TICKET, replace(TICKET, server_round=-(2**60))):
        SplitClientApp(no_client)(
            message("train", replace(one, link="stream")),
            context(**{"partition-id": 0, "state-dir": str(tmp_path)}),
        )
    shown = CliRunner().invoke(cli, ["audit-log", str(tmp_path / "audit-0.jsonl")])
    assert (shown.exit_code, "3 lines" in shown.stdout) == (0, True), shown.output
