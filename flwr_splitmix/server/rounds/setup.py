"""How a loop of rounds is set up: its options, what they are made into, what each round needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from flwr_splitmix.links import Clients, Link, LinkError, LocalLink
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.observers import Audience, Metrics, Observer
from flwr_splitmix.once import Once
from flwr_splitmix.runs import Run
from flwr_splitmix.seeding import generator
from flwr_splitmix.server.aggregation import AggregatorError, LowerAggregator
from flwr_splitmix.server.aggregation.choice import with_wrapped
from flwr_splitmix.server.docstrings import complete
from flwr_splitmix.server.evaluation.over_link import Evaluation
from flwr_splitmix.server.naming import reasons
from flwr_splitmix.server.options import RoundOptions, check_options, check_parts
from flwr_splitmix.server.record.recording import Recording
from flwr_splitmix.server.record.run_recorder import RunRecorder
from flwr_splitmix.server.record.run_records import RunRecords
from flwr_splitmix.server.rounds.known_clients import KnownClients
from flwr_splitmix.server.steps.round_length import Agreement, announced_steps
from flwr_splitmix.values import whole_number
from flwr_splitmix.words import are, counted


class LoopSetup(flower.Strategy):
    """A strategy's options, what they are made into, and what every round needs of these.

    Parameters
    ----------
    recording
        What a shape tells the record of its runs; None for one that has nothing to tell.
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
        What is counted of a run, and its results.
    recorder
        Writes the run's files.
    draw_seed
        Seed of random draws, but for the order of a client's examples; `seed`, unless the same
        clients are fitted again.
    stop_reason
        Why the run ends after this round, if it does: set by a subclass within a round, or by an
        observer that asks to stop.
    passed_on
        Names of the options that a subclass's constructor may pass on as ``**options``.
    fixes_length
        Whether the class's own `agree`, which overriding ones must call, fixes the round's length.
    """

    passed_on: ClassVar[Collection[str]] = RoundOptions.__annotations__
    fixes_length: ClassVar[bool] = False

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
        self.draw_seed = self.seed
        self.link = self._given_link = link
        self._once = Once()
        self._known = KnownClients(self.records.unfinished)
        self.observers = [
            *observers,
            *self.records.observers,
            *self.recorder.observers,
            self._known.epsilons,
        ]
        self.audience = Audience(self.observers)
        self.stop_reason = ""
        self.num_rounds = 0
        self._agreed: Agreement | None = None

    def _sample(self, grid: Grid | None, server_round: int, purpose: str) -> dict[int, int]:
        return self._known.participants.draw(
            self.open_link,
            grid,
            generator(self.draw_seed, f"sample-{purpose}", server_round),
            min_nodes=self.min_nodes,
            fraction=self.fraction_train,
        )

    def _tickets(self, server_round: int, state_round: int) -> Callable[..., Ticket]:
        """Return what makes each client's ticket, which lacks the client and its attempts."""
        averages = self.aggregator.averages
        return partial(
            Ticket,
            seed=self.seed,
            server_round=server_round,
            num_rounds=self.num_rounds,
            arrays="always" if averages else "initial",
            returns_arrays=averages,
            state_round=state_round,
            kept_rounds=self.recorder.checkpoints.rounds,
            run_config=self.recorder.start.resumed_config,
            draw_seed=None if self.draw_seed == self.seed else self.draw_seed,
        )

    def _attempts(self, client: int) -> Mapping[str, Any]:
        attempts = self.records.unfinished.of(client)
        known = [batches for batches in attempts if batches is not None]
        return {"attempt": len(attempts), "earlier": known}

    @property
    def open_link(self) -> Link:
        """The link of the run; LinkError if neither `start` nor `fit` was called."""
        if self.link is None:
            raise LinkError(
                f"{type(self).__name__} has no link, as neither its start() nor its fit() was "
                "called; no strategy can wrap it: one that wraps others goes inside, as in "
                "aggregator=DifferentialPrivacyServerSideFixedClipping(FedAvg(), ...)"
            )
        return self.link

    def announced(self, said: object) -> int | None:
        """Return what `agree`, perhaps a user's own, has said of the round's length, once checked.

        Raises
        ------
        RuntimeError
            If it is no length, or not the one that the class's own `agree` has fixed.
        """
        if self.fixes_length and self._agreed is None:
            raise RuntimeError(
                f"agree of {type(self).__name__} must call super().agree(clients), which leaves "
                "out who does not fit and fixes the round's length, and return its result"
            )
        return announced_steps(type(self), said, self._agreed)

    def forget_agreement(self) -> None:
        """Forget what was agreed on for the round before."""
        self._agreed = None

    def heed_observers(self) -> None:
        """End the run after this round if an observer asks to."""
        self.stop_reason = self.stop_reason or self.audience.stop

    def require(self, clients: Clients) -> None:
        """Raise LinkError if fewer than `min_nodes` clients are left."""
        left = len(clients.nodes)
        if left < self.min_nodes:
            key = "min_nodes" if isinstance(self.open_link, LocalLink) else "min-nodes"
            number, named = self._known.intake.unusual
            before = number == clients.server_round - 1 and not self.aggregator.robust
            said = f" (round {number} averaged an unusual update of {named}, which may be why)"
            raise LinkError(
                f"round {clients.server_round}: {counted(left, 'client')} {are(left)} left, "
                f"{self._said_least(key)}: {reasons(clients) or 'no others were asked'}"
                + (said if named and before else "")
            )

    def _said_least(self, key: str) -> str:
        """Return, for a message, why a round needs `min_nodes` clients; `key` is its name there."""
        return f"{key} is {self.min_nodes}"


def _check_aggregates(aggregator: flower.Strategy | None) -> None:
    """Raise AggregatorError if an aggregator is, or wraps, a strategy of split learning."""
    for own in with_wrapped(aggregator):
        if isinstance(own, LoopSetup):
            raise AggregatorError(
                f"{type(own).__name__} runs rounds of split learning, and aggregates nothing by "
                "itself; an aggregator is one of Flower's strategies, such as FedAvg()"
            )
