"""Who is asked in a round, and what each node is told: a strategy's messages."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from flwr_splitmix.links import AutoLink, Clients, Link, LinkError, RayLink, StreamLink
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.runs import Run
from flwr_splitmix.seeding import generator
from flwr_splitmix.server.aggregation import LowerAggregator
from flwr_splitmix.server.intake.split import reasons
from flwr_splitmix.server.messages import messages_to, with_tickets
from flwr_splitmix.server.recording import Recorder


class RoundMessages(flower.Strategy):
    """What Flower asks of a strategy: train and evaluate messages, and what becomes of replies.

    Parameters
    ----------
    aggregator
        A Flower strategy that aggregates the clients' segments once a round; None leaves them
        with their clients.
    min_nodes
        With fewer clients a round ends with an error.
    fraction_train
        Fraction of the nodes that takes part in a round; drawn from the seed.
    link
        The way to the clients; None until there is one.
    recorder
        Of the run, if it is kept.
    """

    def __init__(
        self,
        aggregator: flower.Strategy | None,
        min_nodes: int,
        fraction_train: float,
        seed: int,
        link: Link | None,
        recorder: Recorder,
    ) -> None:
        self.aggregator = LowerAggregator(aggregator)
        self.min_nodes = min_nodes
        self.fraction_train = fraction_train
        self.seed = seed
        self.link = link
        self.recorder = recorder
        self.num_rounds = 0
        self._resumed = False

    @property
    def _open_link(self) -> Link:
        if self.link is None:
            raise LinkError("a strategy has no link before start() or fit()")
        return self.link

    def unfinished(self, client: int) -> int:
        """Return how often a client has begun a round since the last one that it finished."""
        return 0

    def check_clients(self, n: int) -> None:
        """Raise ValueError if a round of `n` clients makes no sense."""

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid | None,
    ) -> list[Message]:
        """Make the round's train messages: lower segment, configuration and ticket, by client."""
        nodes = self._sample(grid, server_round, "train")
        self.check_clients(len(nodes))
        messages = self.aggregator.configure(
            server_round, arrays, config, grid, list(nodes.values())
        )
        ticket = self._ticket(server_round, server_round - 1)
        attempts = {client: ticket.attempt + self.unfinished(client) for client in nodes}
        return with_tickets(messages, nodes, ticket, attempts)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the lower segments, if the strategy does."""
        return self.aggregator.aggregate(server_round, list(replies))

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid | None,
    ) -> list[Message]:
        """Make the evaluate messages of the round's sample of nodes."""
        nodes = self._sample(grid, server_round, "evaluate")
        content = RecordDict({"arrays": arrays, "config": config})
        messages = messages_to(
            list(nodes.values()), content, MessageType.EVALUATE, in_run=grid is not None
        )
        return with_tickets(messages, nodes, self._ticket(server_round, server_round))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None: the server itself computes what clients' smashed data are worth."""
        return None

    def _sample(self, grid: Grid | None, server_round: int, purpose: str) -> dict[int, int]:
        """Draw the round's clients: client index -> node id, sorted by index."""
        directory = self._open_link.directory(grid, self.min_nodes)
        size = max(self.min_nodes, round(self.fraction_train * len(directory)))
        chosen = self.rng(f"sample-{purpose}", server_round).permutation(sorted(directory))[:size]
        return {int(client): directory[int(client)] for client in sorted(chosen)}

    def _ticket(self, server_round: int, state_round: int) -> Ticket:
        run = self.recorder.run
        return Ticket(
            client=-1,
            seed=self.seed,
            server_round=server_round,
            num_rounds=self.num_rounds,
            arrays="always" if self.aggregator.averages else "initial",
            returns_arrays=self.aggregator.averages,
            state_round=state_round,
            attempt=self.recorder.attempt,
            kept_rounds=self.recorder.kept_rounds,
            run_config=json.dumps(run.config) if run and self._resumed else "",
        )

    def require(self, clients: Clients) -> None:
        """Raise LinkError if fewer than `min_nodes` clients are left."""
        if len(clients.alive) < self.min_nodes:
            raise LinkError(
                f"round {clients.server_round}: {len(clients.alive)} clients are left, min-nodes "
                f"is {self.min_nodes}: {reasons(clients) or 'no others were asked'}"
            )

    def rng(self, purpose: str, *place: int) -> np.random.Generator:
        """Return the generator of one purpose at one place of the run."""
        return generator(self.seed, purpose, *place)


def default_link(run: Run | None, attach_timeout: float) -> AutoLink:
    """Return the link of a strategy that was given none: Ray, or the stream on this machine only.

    For SuperNodes on other machines hand a `StreamLink` with a certificate to the strategy.
    """
    return AutoLink(
        lambda: RayLink(
            state_dir=None if run is None else run.clients_dir, attach_timeout=attach_timeout
        ),
        lambda: StreamLink(
            address="127.0.0.1:0",
            run="" if run is None else run.id,
            attach_timeout=attach_timeout,
        ),
        attach_timeout,
    )
