"""The state of a run: what it begins with, and its progress and that of its clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from flwr_splitmix.clients import Client
from flwr_splitmix.links import Link, LocalLink
from flwr_splitmix.observers import Audience
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.server.evaluation.central import EvaluateFn
from flwr_splitmix.server.intake.replies import ReplyIntake
from flwr_splitmix.server.nodes.participants import Participants
from flwr_splitmix.server.steps.round_length import Agreement

Shape = TypeVar("Shape")


@dataclass(kw_only=True, eq=False, repr=False)
class RunState(Generic[Shape]):
    """One run of a strategy, which itself has the options that all its runs share.

    `RoundLoop` makes one for each `start` and `fit`; the last one stays with the strategy.

    Parameters
    ----------
    link
        How the run's clients are reached.
    num_rounds
        Rounds of the whole run.
    draw_seed
        Seed of the run's draws: groups, ratios, masks, the clients of a round, and what clients
        draw besides the order of their examples. The strategy's `seed`, unless the same clients are
        fitted again.
    initial
        The first lower segment; empty if clients have their own.
    grid
        Flower's; None if the clients are in this process.
    evaluate_fn
        Central evaluation, if any.
    train_config, evaluate_config
        Entries of the messages, for mods, and those of training for the aggregator.
    continues_fit
        Whether the clients are those of the strategy's last `fit`.

    Attributes
    ----------
    result
        Flower's result, which grows with the rounds.
    finished
        Number of the last round that was finished or lost.
    stop_reason
        Why the run ends after this round, if it does.
    agreement
        What `agree` has fixed for the round; None before.
    participants
        Which clients are drawn, have no data, and have trained.
    intake
        The check of a round's replies.
    shape
        State of the rounds that the strategy's shape keeps; see `RoundHooks.new_shape_state`.
    """

    link: Link
    num_rounds: int
    draw_seed: int
    initial: ArrayRecord
    grid: Grid | None = None
    evaluate_fn: EvaluateFn | None = None
    train_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_config: ConfigRecord = field(default_factory=ConfigRecord)
    continues_fit: bool = False
    result: flower.Result = field(init=False, default_factory=flower.Result)
    finished: int = field(init=False, default=0)
    stop_reason: str = field(init=False, default="")
    agreement: Agreement | None = field(init=False, default=None)
    participants: Participants = field(init=False, default_factory=Participants)
    intake: ReplyIntake = field(init=False)
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        """Make the check of replies, which are compared with the first lower segment."""
        self.intake = ReplyIntake(self.initial)

    @property
    def clients(self) -> Sequence[Client] | None:
        """The clients, if they are in this process; None if they are behind a link."""
        return self.link.clients if isinstance(self.link, LocalLink) else None

    def has(self, clients: Sequence[Client]) -> bool:
        """Return whether these are its clients: the same objects, in the same order."""
        run_clients = self.clients or ()
        return len(run_clients) == len(clients) and all(
            a is b for a, b in zip(run_clients, clients, strict=True)
        )

    def stop_if_asked_by(self, audience: Audience) -> None:
        """End the run after this round if an observer asks to."""
        self.stop_reason = self.stop_reason or audience.stop

    @property
    def arrays(self) -> ArrayRecord:
        """The lower segment that another round would start from."""
        return self.result.arrays or self.initial

    @property
    def next_draw_seed(self) -> int:
        """A seed of other draws for another `fit`, as rounds are counted from 1 again."""
        return derive_seed(self.draw_seed, "another fit")
