"""A node in this process, and a server that may ask it for anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from torch import Tensor

from flwr_splitmix.clients import Client, SplitClient
from flwr_splitmix.links.errors import public_sentence
from flwr_splitmix.links.host import ClientHost, build
from flwr_splitmix.links.link import Outcome
from flwr_splitmix.links.node.given import OriginStore
from flwr_splitmix.links.node.guards import NodeGuards
from flwr_splitmix.links.node.state import open_store
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.mixers import FullShare, NoisyShare, Share
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.journal import read_journal
from flwr_splitmix.testing.toy import Toy, sgd

TOY = Toy(clients=1, batch_norm=False, examples=12, tests=6)
TICKET = Ticket(
    client=0,
    seed=7,
    server_round=1,
    num_rounds=3,
    arrays="initial",
    returns_arrays=False,
    run="r",
    state_key="the run's own",
)

N, L = TOY.patches, TOY.classes
NOISE = GaussianNoise(sigma_s=40.0, sigma_y=20.0)


def noisy(inner: Share | None = None, **changes: Any) -> dict[str, Any]:
    return NoisyShare.around(inner or FullShare(), replace(NOISE, **changes), L).to_wire()


def refused(outcome: Outcome, why: str) -> None:
    assert outcome.reply is None
    assert outcome.error is not None
    assert why in outcome.error


class Node:
    """One node, whose processes begin and end with a server's messages.

    Parameters
    ----------
    folder
        The node's state-dir.
    config
        Configuration of the node, besides its index and its folder.
    toy
        Toy that makes its client.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any] | None = None, toy: Toy = TOY
    ) -> None:
        self.folder = folder
        self.toy = toy
        self.config = {"partition-id": 0, "state-dir": str(folder), **(config or {})}
        self.options: dict[str, Any] = {}
        self.lower: Any = None
        self.run_id = 1
        self.run_config: dict[str, Any] = {}

    def begin(
        self, ticket: Ticket = TICKET, arrays: dict[str, Tensor] | None = None, **changes: Any
    ) -> dict[str, Any]:
        """Start a process for a round and attach its client; return the client's description."""
        ticket = replace(ticket, **changes)
        context = Context(
            run_id=self.run_id,
            node_id=9,
            node_config=self.config,
            state=RecordDict(),
            run_config=dict(self.run_config),
        )
        self.ticket = ticket
        self.guards = NodeGuards(context, ticket)
        run_store = open_store(ticket.run, ticket.state_key, context)
        store = OriginStore(run_store, arrays, ticket, trains=self.guards.policy.trains)
        self.host = ClientHost(store, public_sentence)
        make = partial(self.guards.build, partial(build, self._client, context, public_sentence))
        return self.host.attach(ticket, make, arrays)

    def _client(self, context: Context) -> Client:
        options = {"repeatable_secrets": False, **self.options}
        (client,) = self.toy.make_clients(sgd(0.1), **options)
        if self.lower is not None:
            client.segment = self.lower
        return client

    def ask(self, method: str, **arguments: Any) -> Outcome:
        """Call the client as a server does; the guards withhold forbidden answers."""
        return self.guards.answer(
            method, arguments, lambda: self.host.call(method, {0: arguments})[0]
        )

    def step(self, plan: Any, number: int = 0, gradient: Any = None) -> Outcome:
        return self.ask("step", number=number, progress=0.0, gradient=gradient, plan=plan)

    def end(self, *, finish: bool = True) -> None:
        """End the process, after the round or during it."""
        if finish:
            self.host.finish(self.ticket)

    @property
    def client(self) -> SplitClient:
        client = self.host.clients[0]
        assert isinstance(client, SplitClient)
        return client

    @property
    def releases(self) -> int:
        """Number of releases that the node's ledger has been charged for."""
        assert self.client.guard is not None
        return self.client.guard.ledger.releases

    def slope(self) -> float:
        """Return what the record that spent most has paid (see `privacy.costs`)."""
        assert self.client.guard is not None
        return float(self.client.guard.ledger.spent()[2])

    def audit(self) -> list[dict[str, Any]]:
        """Return the lines of the node's audit log."""
        path = self.folder / "audit-0.jsonl"
        return read_journal(path) if path.exists() else []
