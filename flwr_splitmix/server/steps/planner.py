"""The plans of a round, which depend only on the seed, not on where they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flwr_splitmix.mixers import Mixer, Plan, SmashedShape
from flwr_splitmix.mixers.checked_mixer import checked_plan
from flwr_splitmix.mixers.plan_check import check_masks, check_plan
from flwr_splitmix.seeding import generator
from flwr_splitmix.server.steps.round_length import RoundLength


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
            As for `checked_plan` and `check_plan`, and for the round's first step as `check_masks`.
        """
        epoch = number // self.length.epoch
        by_epoch = self.mixer.regroup == "epoch"
        draft = self.mixer.plan(
            members,
            self.shape,
            generator(self.seed, "plan", self.server_round, number),
            generator(self.seed, "groups", self.server_round, epoch) if by_epoch else None,
        )
        plan = checked_plan(self.mixer, draft)
        check_plan(self.mixer, plan, members, self.shape)
        if number == 0:  # later ones are drawn alike, and masks take time to draw
            check_masks(self.mixer, plan)
        return plan
