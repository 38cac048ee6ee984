"""The setup of a loop of rounds: its options, and the parts made from them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from flwr.serverapp import strategy as flower

from flwr_splitmix.links import Link
from flwr_splitmix.observers import Audience, Metrics, Observer
from flwr_splitmix.runs import Run
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.aggregation import AggregatorError, LowerAggregator
from flwr_splitmix.server.aggregation.choice import with_wrapped
from flwr_splitmix.server.docstrings import complete
from flwr_splitmix.server.evaluation.over_link import Evaluation
from flwr_splitmix.server.options import RoundOptions, check_options, check_parts
from flwr_splitmix.server.record.recording import Recording
from flwr_splitmix.server.record.run_recorder import RunRecorder
from flwr_splitmix.server.record.run_records import RunRecords
from flwr_splitmix.values import whole_number


class LoopSetup(flower.Strategy):
    """A strategy's options, and the parts made from them for all of its runs.

    The state of a single run is a `RunState`.

    Parameters
    ----------
    recording
        Facts about the shape for the records of its runs; None for a shape without any.
    aggregator
        A Flower strategy that aggregates the clients' segments once a round; None leaves them
        with their clients.
    min_nodes
        Fewest clients: with fewer in a round, the run ends with an error.
    fraction_train
        Fraction of the nodes that take part in a round, by default 1.0; the nodes are drawn from
        the seed.
    evaluation, evaluate_every
        "federated" or "benchmark" evaluation over the link every `evaluate_every` rounds (1) and
        after the last one; by default "none". For central evaluation pass an `evaluate_fn` to
        `start` or `fit`.
    checkpoint_every
        Rounds between checkpoints, by default 1.
    seed
        For every public draw, by default 0: a run repeats bit for bit on a CPU with the same thread
        count.
    link
        None joins a simulation's Ray session or, with SuperNodes on this machine, opens a stream.
        `fit` uses none.
    observers
        Notified of exchanges, steps and rounds.
    run
        The run's directory; None writes nothing. A run that has checkpoints is continued.
    metrics
        Makes the rows of the run, for example with further columns; None makes the standard rows.

    Attributes
    ----------
    records
        The counts and results of a run.
    recorder
        Writes the run's files.
    observers, audience
        All observers, including those of the records; notifies them of events.
    passed_on
        Names of the options that a subclass's constructor may pass on as ``**options``.
    """

    passed_on: ClassVar[Collection[str]] = RoundOptions.__annotations__

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Complete the docstring with the parameters that the class inherits."""
        super().__init_subclass__(**kwargs)
        complete(cls, cls.passed_on)

    def __init__(
        self,
        recording: Recording | None = None,
        /,
        *,
        aggregator: flower.Strategy | None,
        min_nodes: int,
        fraction_train: float = 1.0,
        evaluation: Evaluation = "none",
        evaluate_every: int = 1,
        checkpoint_every: int = 1,
        seed: int = 0,
        link: Link | None = None,
        observers: Sequence[Observer] = (),
        run: Run | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        check_parts(aggregator, observers, run, link, metrics)
        check_options(
            fraction_train,
            evaluation,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
        )
        _check_aggregates(aggregator)
        self.records = RunRecords(metrics, recording or Recording())
        self.recorder = RunRecorder(run, checkpoint_every, self.records)
        self.aggregator = LowerAggregator(aggregator)
        self.min_nodes = min_nodes
        self.fraction_train = fraction_train
        self.evaluation: Evaluation = evaluation
        self.evaluate_every = evaluate_every
        self.seed = whole_number("seed", seed)  # 1.0 or True would draw other numbers than 1
        self.link = link
        self._once = SeenKeys()
        self.observers = [*observers, *self.records.observers, *self.recorder.observers]
        self.audience = Audience(self.observers)


def _check_aggregates(aggregator: flower.Strategy | None) -> None:
    """Raise AggregatorError if an aggregator is, or wraps, a strategy of split learning."""
    for strategy in with_wrapped(aggregator):
        if isinstance(strategy, LoopSetup):
            raise AggregatorError(
                f"{type(strategy).__name__} runs rounds of split learning, and aggregates nothing "
                "by itself; an aggregator is one of Flower's strategies, such as FedAvg()"
            )
