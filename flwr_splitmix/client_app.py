"""SplitClientApp: a Flower ClientApp made from a client_fn."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_splitmix.clients import Client
from flwr_splitmix.links.host import sentence
from flwr_splitmix.links.ticket import RECORD, Ticket

ClientFn = Callable[[Context], Client]


class SplitClientApp(ClientApp):
    """Serves the strategies of `flwr_splitmix.strategies` on a node.

    A message carries the round; the steps go over the link that its ticket names. In a simulation
    the client lives in a host actor, which builds it once from `client_fn` and the context.

    Parameters
    ----------
    client_fn
        Makes the node's client from the Flower context. It is looked up by name in the host's
        process, so define it at the top of a module of the app.
    mods
        Flower mods around the train and evaluate messages.
    """

    def __init__(self, client_fn: ClientFn, mods: list[Any] | None = None) -> None:
        super().__init__()
        self.client_fn = client_fn
        self.train(mods=mods)(self._attach)
        self.train("finish", mods=mods)(self._finish)
        self.evaluate(mods=mods)(self._attach)
        self.query()(_describe_node)

    def _attach(self, message: Message, context: Context) -> Message:
        ticket = Ticket.from_message(message)
        if ticket.link != "ray":
            raise ValueError(f"this node knows no link {ticket.link!r}; allowed is 'ray'")
        from ray import cloudpickle

        from flwr_splitmix.links.ray_host import call_host

        if ticket.run_config:
            context = copy.copy(context)
            context.run_config = json.loads(ticket.run_config)
        records = list(message.content.array_records.values())
        arrays = {n: a.numpy() for n, a in records[0].items()} if records else None
        reply = _answer(
            lambda: call_host(
                ticket,
                "attach",
                cloudpickle.dumps(self.client_fn),  # type: ignore[no-untyped-call]
                list(sys.path),
                context,
                arrays,
            )
        )
        return Message(RecordDict({RECORD: ConfigRecord(reply)}), reply_to=message)

    def _finish(self, message: Message, context: Context) -> Message:
        from flwr_splitmix.links.ray_host import call_host

        ticket = Ticket.from_message(message)
        reply = _answer(
            lambda: dict(
                zip(
                    ("arrays", "metrics", "warning"),
                    call_host(ticket, "finish"),
                    strict=True,
                )
            )
        )
        content = RecordDict()
        if "error" in reply:
            content[RECORD] = ConfigRecord(reply)
        else:
            if reply["arrays"]:
                content["arrays"] = ArrayRecord({n: Array(a) for n, a in reply["arrays"].items()})
            content["metrics"] = MetricRecord(reply["metrics"])
            if reply["warning"]:
                content[RECORD] = ConfigRecord({"warning": reply["warning"]})
        return Message(content, reply_to=message)


def _answer(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a call; what it raises becomes one sentence for the server, not a traceback."""
    try:
        return call()
    except Exception as error:
        return {"error": sentence(error)}


def _describe_node(message: Message, context: Context) -> Message:
    index = context.node_config.get("partition-id")
    if isinstance(index, int) and index >= 0:
        record = ConfigRecord({"client": index})
    else:
        record = ConfigRecord(
            {"error": "a SuperNode has no partition-id; give it one with --node-config"}
        )
    return Message(RecordDict({RECORD: record}), reply_to=message)
