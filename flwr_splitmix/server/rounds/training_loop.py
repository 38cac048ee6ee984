"""Common parts of both shapes' strategies: the length of rounds, and averaging."""

from __future__ import annotations

from typing import ClassVar, TypeVar, Unpack

from flwr.serverapp import strategy as flower

from flwr_splitmix.server.aggregation import fedavg
from flwr_splitmix.server.options import RoundOptions, check_counts
from flwr_splitmix.server.record.recording import Recording
from flwr_splitmix.server.rounds.loop import RoundLoop
from flwr_splitmix.server.steps.round_length import Agreement, RoundLength, agreed

AnyAgreement = TypeVar("AnyAgreement", bound=Agreement)


class TrainingLoop(RoundLoop):
    """A loop of rounds of steps in which the server, too, trains a part of the model.

    Parameters
    ----------
    recording
        Facts about the shape for the records of its runs.
    aggregator
        A Flower strategy that aggregates the clients' segments once a round; None uses FedAvg if
        the class `averages`, and otherwise leaves them with their clients.
    steps_per_round, epochs_per_round
        By default the mean number of full batches of the round's clients, times
        `epochs_per_round` (1).
    min_nodes
        Fewest clients: with fewer in a round, the run ends with an error.
    **options
        See `LoopSetup`.

    Attributes
    ----------
    averages
        Whether the class averages the clients' segments, by FedAvg if no aggregator is given.
        Whether a strategy averages is `aggregator.averages`: one of another class does if it has
        an aggregator.
    """

    averages: ClassVar[bool] = False
    fixes_length: ClassVar[bool] = True

    def __init__(
        self,
        recording: Recording | None = None,
        /,
        *,
        aggregator: flower.Strategy | None,
        steps_per_round: int | None,
        epochs_per_round: int,
        min_nodes: int,
        **options: Unpack[RoundOptions],
    ) -> None:
        check_counts(
            steps_per_round=steps_per_round, epochs_per_round=epochs_per_round, min_nodes=min_nodes
        )
        if aggregator is None and self.averages:
            aggregator = fedavg()
        super().__init__(recording, aggregator=aggregator, min_nodes=min_nodes, **options)
        self.steps_per_round = steps_per_round
        self.epochs_per_round = epochs_per_round

    def _length(self, batches: int) -> RoundLength:
        """Return the length of a round whose clients have `batches` full batches, on average."""
        return RoundLength.of(batches, self.steps_per_round, self.epochs_per_round)

    def _agreement(self, kind: type[AnyAgreement]) -> AnyAgreement:
        """Return the agreement that the shape's `agree` has fixed for the round.

        Raises
        ------
        RuntimeError
            If it has fixed nothing, or the length's options have changed since.
        """
        run = self._run_state
        agreement = agreed(type(self), None if run is None else run.agreement, kind)
        agreement.check_still(self._length(agreement.batches))
        return agreement

    @property
    def _segments_after_round(self) -> str:
        """The place of the clients' segments after a round, for the summary."""
        aggregator = self.aggregator.strategy
        if aggregator is None:
            return "stay with clients"
        return f"aggregated by {type(aggregator).__name__}"
