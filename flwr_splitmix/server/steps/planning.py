"""The length of a round and its plans, which depend only on the seed, not on who draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flwr_splitmix.mixers import Mixer, Plan, SmashedShape
from flwr_splitmix.mixers.hooks import checked_plan
from flwr_splitmix.mixers.plan_check import check_masks, check_plan
from flwr_splitmix.seeding import generator


@dataclass(frozen=True)
class RoundLength:
    """The number of steps of a round, and of an epoch."""

    steps: int
    epoch: int

    @classmethod
    def of(cls, batches: int, steps_per_round: int | None, epochs_per_round: int) -> RoundLength:
        """Return the length of a round; without `steps_per_round`, epochs of `batches` steps."""
        steps = steps_per_round or batches * epochs_per_round
        return cls(steps, max(1, steps // epochs_per_round))

    def check_still(self, batches: int, steps_per_round: int | None, epochs_per_round: int) -> None:
        """Check that the options have not changed since this length was agreed on.

        Raises
        ------
        RuntimeError
            If they have: the clients' ledgers count on the length that was announced.
        """
        if RoundLength.of(batches, steps_per_round, epochs_per_round) != self:
            raise RuntimeError(
                f"steps_per_round or epochs_per_round changed after a round of {self.steps} steps "
                "had begun: a strategy whose rounds differ sets them in `agree`, before "
                "`super().agree(clients)` (clients.server_round is the round)"
            )


@dataclass(frozen=True)
class Planner:
    """Draws the plans of one round.

    Parameters
    ----------
    seed
        For groups, ratios and masks.
    """

    mixer: Mixer
    shape: SmashedShape
    length: RoundLength
    seed: int
    server_round: int

    def plan(self, members: Sequence[int], number: int) -> Plan:
        """Draw the plan of one step of the round; `members` must be sorted.

        Raises
        ------
        TypeError, ValueError
            As `checked_plan` and `check_plan`, and for the round's first step as `check_masks`.
        """
        epoch = number // self.length.epoch
        by_epoch = self.mixer.regroup == "epoch"
        made = self.mixer.plan(
            members,
            self.shape,
            generator(self.seed, "plan", self.server_round, number),
            generator(self.seed, "groups", self.server_round, epoch) if by_epoch else None,
        )
        plan = checked_plan(self.mixer, made)
        check_plan(self.mixer, plan, members, self.shape)
        if number == 0:  # later ones are drawn alike, and masks take time to draw
            check_masks(self.mixer, plan)
        return plan
