"""The messages of a round: to whom they go, what they carry, how the replies are averaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from flwr_splitmix.links import Link, LinkError
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.seeding import generator
from flwr_splitmix.server.aggregation import LowerAggregator
from flwr_splitmix.server.messages import messages_to, with_tickets
from flwr_splitmix.server.participants import Participants
from flwr_splitmix.server.record.recording import RunRecorder
from flwr_splitmix.server.shape import Shape


class RoundMessages(Shape):
    """The part of a strategy that makes a round's messages, under the names of Flower's strategies.

    `RoundLoop` sets the attributes.

    Attributes
    ----------
    draw_seed
        Seed of random draws, but for the order of a client's examples; `seed`, unless the same
        clients are fitted again.
    """

    aggregator: LowerAggregator
    _participants: Participants
    recorder: RunRecorder
    link: Link | None
    min_nodes: int
    fraction_train: float
    num_rounds: int
    seed: int
    draw_seed: int

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid | None
    ) -> Iterable[Message]:
        """Return the round's train messages: lower segment, configuration and ticket per client.

        Raises
        ------
        ValueError
            In round 1, if it has fewer nodes than the strategy asks for. Nodes that are lost later,
            or have no data, do not end a run that has begun, nor keep it from being resumed.
        """
        nodes = self._sample(grid, server_round, "train")
        if server_round == 1:
            self.check_clients(len(nodes))
        messages = self.aggregator.configure(
            server_round, arrays, config, grid, list(nodes.values())
        )
        ticket = self._ticket(server_round, server_round - 1)
        return with_tickets(messages, nodes, ticket, self._attempts)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the lower segments, if the strategy has an aggregator."""
        return self.aggregator.aggregate(server_round, list(replies))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid | None
    ) -> Iterable[Message]:
        """Return the evaluate messages for the round's sample of nodes."""
        nodes = self._sample(grid, server_round, "evaluate")
        content = RecordDict({"arrays": arrays, "config": config})
        messages = messages_to(
            list(nodes.values()), content, MessageType.EVALUATE, in_run=grid is not None
        )
        ticket = self._ticket(server_round, server_round)
        before = self.recorder.unfinished.of_evaluation
        return with_tickets(messages, nodes, ticket, lambda client: {"attempt": before(client)})

    def _attempts(self, client: int) -> Mapping[str, Any]:
        attempts = self.recorder.unfinished.of(client)
        known = [batches for batches in attempts if batches is not None]
        return {"attempt": len(attempts), "earlier": known}

    @property
    def _open_link(self) -> Link:
        if self.link is None:
            raise LinkError(
                f"{type(self).__name__} has no link, as neither its start() nor its fit() was "
                "called; no strategy can wrap it: one that wraps others goes inside, as in "
                "aggregator=DifferentialPrivacyServerSideFixedClipping(FedAvg(), ...)"
            )
        return self.link

    def _sample(self, grid: Grid | None, server_round: int, purpose: str) -> dict[int, int]:
        return self._participants.draw(
            self._open_link,
            grid,
            generator(self.draw_seed, f"sample-{purpose}", server_round),
            min_nodes=self.min_nodes,
            fraction=self.fraction_train,
        )

    def _ticket(self, server_round: int, state_round: int) -> Ticket:
        averages = self.aggregator.averages
        return Ticket(
            client=-1,
            seed=self.seed,
            server_round=server_round,
            num_rounds=self.num_rounds,
            arrays="always" if averages else "initial",
            returns_arrays=averages,
            state_round=state_round,
            kept_rounds=self.recorder.kept_rounds,
            run_config=self.recorder.resumed_config,
            draw_seed=None if self.draw_seed == self.seed else self.draw_seed,
        )
