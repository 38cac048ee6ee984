"""The methods that a round calls on its strategy, which an own strategy may override."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from flwr_splitmix.clients import Client
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.links import Clients, LinkError
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.overriding import is_own
from flwr_splitmix.seeding import generator
from flwr_splitmix.server.messages import messages_to, round_config, with_tickets
from flwr_splitmix.server.naming import name_of_option, reasons
from flwr_splitmix.server.record.checkpointing import facts_of
from flwr_splitmix.server.rounds.setup import LoopSetup
from flwr_splitmix.server.rounds.state import RunState
from flwr_splitmix.words import are, counted

_INSIDE = "goes inside, as in aggregator=DifferentialPrivacyServerSideFixedClipping(FedAvg(), ...)"
"""Where a strategy that wraps others belongs."""


class RoundHooks(LoopSetup):
    """Defines a round's messages and training, its evaluation, and what a checkpoint holds.

    The messages have the names that they have in Flower's strategies. `WholeRun` and `OneRound`
    call these methods; `summary` (Flower's) logs the strategy's components.

    Attributes
    ----------
    states_in_checkpoint
        Whether `server_state` includes the states of clients, which live in this process; if not,
        the link keeps them beside the checkpoints.
    fixes_length
        Whether the class's own `agree`, which overriding ones must call, fixes the round's length.

    See `LoopSetup` for the other attributes.
    """

    states_in_checkpoint: ClassVar[bool] = False
    fixes_length: ClassVar[bool] = False
    _run_state: RunState[Any] | None = None

    @property
    def run_state(self) -> RunState[Any]:
        """The current or last run; LinkError if there was none."""
        name = type(self).__name__
        if self._run_state is None and is_own(type(self), "start"):
            raise LinkError(
                f"{name} has no run and no link: its own start() has not called "
                "super().start(...), which runs the rounds over a link. Put the work of a round "
                "into aggregate_train, an observer's on_round or evaluate_fn; a strategy that "
                f"wraps others {_INSIDE}"
            )
        if self._run_state is None:
            raise LinkError(
                f"{name} has no run and no link, as neither its start() nor its "
                f"fit() was called; no strategy can wrap it: one that wraps others {_INSIDE}"
            )
        return self._run_state

    @property
    def stop_reason(self) -> str:
        """Why the run ends after this round, if it does; "" before the first run.

        A subclass may set it within a round.
        """
        return "" if self._run_state is None else self._run_state.stop_reason

    @stop_reason.setter
    def stop_reason(self, reason: str) -> None:
        if self._run_state is None:
            if reason:
                raise LinkError(
                    "stop_reason ends a run after its round: set it within one, as in train_round"
                )
            return
        self._run_state.stop_reason = reason

    @property
    def last_trained_round(self) -> Mapping[int, int]:
        """By client index, the last round of the run that the client finished."""
        return {} if self._run_state is None else self._run_state.participants.last_trained_round

    def prepare(self, clients: Sequence[Client] | None) -> None:
        """Get ready for a run with clients of this process, or with clients behind a link (None).

        It raises an error if the strategy cannot have them. What it keeps of the run goes into
        `new_shape_state`.
        """

    def new_shape_state(self, before: Any) -> Any:
        """Return what the strategy's shape keeps of a run's rounds: `run_state.shape`.

        Parameters
        ----------
        before
            That of the last `fit`, if the run continues with its clients; else None.
        """

    def agree(self, clients: Clients) -> int | None:
        """Exclude clients that do not fit from a round, and return the round's number of steps.

        No client is asked for more batches than that. A strategy whose rounds differ in length
        sets its `steps_per_round` here, before `super().agree(clients)`. None: the number is not
        known before. Then a client that accounts for noise has no epsilon any more once it did not
        finish a round, as the number of batches that it sent is unknown. A number that is not the
        length fixed by `super().agree(clients)` ends the run.
        """
        return None

    @abstractmethod
    def train_round(self, clients: Clients, server_round: int) -> int:
        """Train for one round and return the number of steps, at most what `agree` returned."""

    @abstractmethod
    def evaluate_round(self, clients: Clients) -> EvaluationResult | None:
        """Evaluate the model over the link, as set by `evaluation`."""

    @abstractmethod
    def server_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the server's state: tensors by name, and JSON values by name.

        An override adds to what `super().server_state()` returns.
        """

    @abstractmethod
    def restore_server(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `server_state`."""

    @property
    def facts_to_keep(self) -> dict[str, Any]:
        """Facts in a checkpoint that must be the same when the run is resumed."""
        clients = self.run_state.clients
        return facts_of(self.seed, None if clients is None else len(clients))

    @property
    def keeps_ledger(self) -> bool:
        """Whether uploads are accounted for, even if a round is repeated."""
        return False

    def epsilons(self) -> Mapping[int, float]:
        """Return the epsilon that each client has spent; empty without a ledger."""
        return {}

    def epsilon(self) -> float | None:
        """Return the largest epsilon that a client has spent; None without a ledger."""
        return max(self.epsilons().values(), default=None)

    def check_clients(self, n: int) -> None:
        """Raise ValueError if a round cannot have `n` clients."""

    def warn_if_trained(self) -> None:
        """Log if the server's segment has been trained before, although a new run begins."""

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
        ticket_of = self._tickets(server_round, server_round - 1)
        return with_tickets(messages, nodes, ticket_of, self._attempts)

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
        content = RecordDict({"arrays": arrays, "config": round_config(server_round, config)})
        messages = messages_to(
            list(nodes.values()), content, MessageType.EVALUATE, in_run=grid is not None
        )
        ticket_of = self._tickets(server_round, server_round)
        before = self.records.unfinished.of_evaluation
        return with_tickets(messages, nodes, ticket_of, lambda client: {"attempt": before(client)})

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None: the evaluation is computed over the link, not from replies."""
        return None

    def require(self, clients: Clients) -> None:
        """Raise LinkError if fewer than `min_nodes` clients are left."""
        alive = len(clients.nodes)
        if alive < self.min_nodes:
            option = name_of_option(self.recorder.run, "min_nodes", "min-nodes")
            number, named = self.run_state.intake.unusual
            before = number == clients.server_round - 1 and not self.aggregator.robust
            hint = f" (round {number} averaged an unusual update of {named}, which may be why)"
            raise LinkError(
                f"round {clients.server_round}: {counted(alive, 'client')} {are(alive)} left, "
                f"{self._minimum_phrase(option)}: {reasons(clients) or 'no others were asked'}"
                + (hint if named and before else "")
            )

    def _minimum_phrase(self, option: str) -> str:
        """Return, for a message, why a round needs `min_nodes` clients.

        Parameters
        ----------
        option
            The option's name for the user.
        """
        return f"{option} is {self.min_nodes}"

    def _sample(self, grid: Grid | None, server_round: int, purpose: str) -> dict[int, int]:
        run = self.run_state
        return run.participants.draw(
            run.link,
            grid,
            generator(run.draw_seed, f"sample-{purpose}", server_round),
            min_nodes=self.min_nodes,
            fraction=self.fraction_train,
        )

    def _tickets(self, server_round: int, state_round: int) -> Callable[..., Ticket]:
        """Return a function that makes each client's ticket from the client and its attempts."""
        run, averages = self.run_state, self.aggregator.averages
        return partial(
            Ticket,
            seed=self.seed,
            server_round=server_round,
            num_rounds=run.num_rounds,
            arrays="always" if averages else "initial",
            returns_arrays=averages,
            state_round=state_round,
            kept_rounds=self.recorder.checkpoints.rounds,
            run_config=self.recorder.start.resumed_config,
            draw_seed=None if run.draw_seed == self.seed else run.draw_seed,
        )

    def _attempts(self, client: int) -> Mapping[str, Any]:
        attempts = self.records.unfinished.of(client)
        batch_counts = [batches for batches in attempts if batches is not None]
        return {"attempt": len(attempts), "earlier": batch_counts}
