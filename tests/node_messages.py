"""Messages to a node and its context, for tests of what its app answers."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Message, RecordDict

from flwr_splitmix import SplitClient
from flwr_splitmix.links.ticket import RECORD, Ticket
from flwr_splitmix.server.messages import messages_to

TICKET = Ticket(client=0, seed=7, server_round=1, num_rounds=2, state_key="the run's own")


def context(**node_config: Any) -> Context:
    return Context(run_id=1, node_id=9, node_config=node_config, state=RecordDict(), run_config={})


def message(kind: str, ticket: Ticket | None = None) -> Message:
    content = RecordDict({} if ticket is None else {RECORD: ticket.to_record()})
    return messages_to([9], content, kind, in_run=False)[0]


def no_client(context: Context) -> SplitClient:
    raise AssertionError("no client is needed")
