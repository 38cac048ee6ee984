"""SplitClientApp: a Flower ClientApp made from a client_fn."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection
from functools import partial
from types import FunctionType
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_splitmix.clients import Client
from flwr_splitmix.links.arrays import to_numpy
from flwr_splitmix.links.host import logged_reason
from flwr_splitmix.links.simulated import ray_runs_here
from flwr_splitmix.links.ticket import RECORD, Ticket, context_of, release_content
from flwr_splitmix.values import check_kind, takes

ClientFn = Callable[[Context], Client]

Handler = Callable[[Message, Context], Message]
"""A function that answers a message."""


class SplitClientApp(ClientApp):
    """Serves the strategies of `flwr_splitmix.strategies` on a node.

    A message carries the round; steps use the link that its ticket names. In a simulation the
    client lives in a host actor, which builds it once from `client_fn` and the context. On a
    SuperNode it lives in this process, one per round: it is built from `client_fn` and the state
    kept by the node, dials the ServerApp, and serves its calls until the end of the round.

    A node's configuration (`--node-config`) must hold `partition-id`. It may hold `state-dir`
    (where the client's state is kept; "" keeps it in Flower's context), `ssl-certfile` and
    `ssl-keyfile` (the node's own certificate, if the server asks for one), `link-via` and
    `link-via-ca` (the only mixer that the node dials), `privacy-policy` (a file with the keys of a
    `NodePolicy`) or these keys themselves: what may leave the node, whatever the run asks for.

    Parameters
    ----------
    client_fn
        Makes the node's client from the Flower context. In a simulation it is looked up by name
        in the host's process, so define it at the top level of a module of the app or of an
        installed package; what it writes to `context.state` is not kept there, and no lifespan
        of this app surrounds it.
    mods
        Flower mods around the train and evaluate messages. In a simulation a `train` message
        only begins the round, and the reply to `train.finish` has the arrays, so that mods which
        change the arrays of one message and its reply (clipping, local DP, secure aggregation)
        do not fit.

    Raises
    ------
    TypeError
        If `client_fn` cannot be called with a context, or `mods` is not a list of functions.
    ValueError
        If a mod is, derives from or calls one of Flower's that do not fit, as far as can be seen.
    """

    def __init__(self, client_fn: ClientFn, mods: list[Any] | None = None) -> None:
        super().__init__()
        _check_client_fn(client_fn)
        if mods is not None:
            check_kind("mods", mods, list, "a list of mods, mods=[...]")
        for mod in mods or ():
            if not callable(mod):
                check_kind("a mod", mod, FunctionType, "a function of message, context and app")
            if name := _unfit(mod):
                raise ValueError(
                    f"mods has {name}, which changes arrays of one train message and its reply; "
                    "here the steps carry the training: take noise=GaussianNoise(...), or a "
                    "server-side DP strategy as the aggregator"
                )
        self.client_fn = client_fn
        self._checked = False
        super().train(mods=mods)(self._take_part)
        super().train("finish", mods=mods)(self._finish)
        super().evaluate(mods=mods)(self._take_part)
        super().query()(_describe_node)

    def train(
        self, action: str = "default", *, mods: list[Any] | None = None
    ) -> Callable[[Handler], Handler]:
        """Register a train function of your own, for an action that this app does not have.

        Raises
        ------
        ValueError
            If it has.
        """
        _check_free("train", action, ("default", "finish"))
        return super().train(action, mods=mods)

    def evaluate(
        self, action: str = "default", *, mods: list[Any] | None = None
    ) -> Callable[[Handler], Handler]:
        """Register an evaluate function of your own, as `train`."""
        _check_free("evaluate", action, ("default",))
        return super().evaluate(action, mods=mods)

    def query(
        self, action: str = "default", *, mods: list[Any] | None = None
    ) -> Callable[[Handler], Handler]:
        """Register a query function of your own, as `train`."""
        _check_free("query", action, ("default",))
        return super().query(action, mods=mods)

    def _take_part(self, message: Message, context: Context) -> Message:
        if ray_runs_here() and (ticket := Ticket.from_message(message)).link == "ray":
            content = self._attach_to_host(message, context_of(ticket, context), ticket)
        else:
            from flwr_splitmix.links.node.round import serve_round

            content = serve_round(self.client_fn, message, context)
        return Message(content, reply_to=message)

    def _attach_to_host(self, message: Message, context: Context, ticket: Ticket) -> RecordDict:
        from ray import cloudpickle

        from flwr_splitmix.links.ray.actor import call_host
        from flwr_splitmix.links.ray.shadowed import check_own_modules

        records = list(message.content.array_records.values())
        arrays = to_numpy(records[0]) if records else None

        def attach() -> dict[str, Any]:
            if not self._checked:
                check_own_modules(self.client_fn)
                self._checked = True
            pickled = cloudpickle.dumps(self.client_fn)  # type: ignore[no-untyped-call]
            return dict(call_host(ticket, "attach", pickled, list(sys.path), context, arrays))

        reply = _answer(ticket, "attach", attach)
        return RecordDict({RECORD: ConfigRecord(reply)})

    def _finish(self, message: Message, context: Context) -> Message:
        if not ray_runs_here():
            from flwr_splitmix.links.node.round import NOT_SIMULATED, refuse_round

            return Message(refuse_round(message, context, NOT_SIMULATED), reply_to=message)
        from flwr_splitmix.links.ray.actor import call_host

        ticket = Ticket.from_message(message)
        reply = _answer(
            ticket,
            "release",
            lambda: dict(
                zip(
                    ("arrays", "metrics", "warning"),
                    call_host(ticket, "finish"),
                    strict=True,
                )
            ),
        )
        if "error" in reply:
            content = RecordDict({RECORD: ConfigRecord(reply)})
        else:
            arrays = ArrayRecord({n: Array(a) for n, a in reply["arrays"].items()})
            content = release_content(arrays, reply["metrics"], reply["warning"])
        return Message(content, reply_to=message)


_UNFIT = {
    "LocalDpMod",
    "fixedclipping_mod",
    "adaptiveclipping_mod",
    "secagg_mod",
    "secaggplus_mod",
}
"""Flower's mods that need the arrays of a round in one message and its reply."""


def _unfit(mod: Any) -> str:
    """Return which unfit mod of Flower's a mod is, derives from or passes its calls to; else ""."""
    while isinstance(mod, partial):
        mod = mod.func
    mod = inspect.unwrap(mod) if callable(mod) else mod
    names = [getattr(mod, "__name__", ""), *(kind.__name__ for kind in type(mod).__mro__)]
    return next((name for name in names if name in _UNFIT), "")


def _check_client_fn(client_fn: object) -> None:
    """Refuse what cannot be called with a context: it would fail on every node."""
    if callable(client_fn) and takes(client_fn, None):
        return
    expected = "a function that makes the node's client from the Flower context"
    if callable(client_fn) and not isinstance(client_fn, type):
        raise TypeError(f"client_fn is a function of other arguments; expected {expected}")
    check_kind("client_fn", client_fn, FunctionType, expected)


def _check_free(kind: str, action: str, own_actions: Collection[str]) -> None:
    if action in own_actions:
        typed = "" if action == "default" else f"{action!r}"
        raise ValueError(
            f"SplitClientApp answers these {kind} messages itself: remove @app.{kind}({typed}) "
            f"with its function, give it an action of its own, such as @app.{kind}('mine'), or, if "
            "it is for FedAvg or the like, leave it in a ClientApp of its own "
            '(docs/own-app.md, "FedAvg in the same app")'
        )


def _answer(ticket: Ticket, where: str, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a call, turning an exception into an error message for the server; log its text."""
    try:
        return call()
    except Exception as error:
        return {"error": logged_reason(ticket.client, where, error)}


def _describe_node(message: Message, context: Context) -> Message:
    index = context.node_config.get("partition-id")
    if type(index) is int and index >= 0:
        record = ConfigRecord({"client": index, "simulated": ray_runs_here()})
        if type(parts := context.node_config.get("num-partitions")) is int:
            record["partitions"] = parts
    elif index is None:
        record = ConfigRecord(
            {"error": "a SuperNode has no partition-id; give it one with --node-config"}
        )
    else:
        error = (
            f"a SuperNode's partition-id is {index!r:.40}; it must be a whole number from 0, "
            "without quotes (--node-config)"
        )
        record = ConfigRecord({"error": error})
    return Message(RecordDict({RECORD: record}), reply_to=message)
