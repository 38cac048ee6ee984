"""Smashed Patch CutMix: the members of a group each send some patches of their smashed data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Literal, get_args

import numpy as np

from flwr_splitmix.mixers.facts import Regroup
from flwr_splitmix.mixers.grouping import WHOLE_OR_NOT, GroupMixer, Leftover
from flwr_splitmix.mixers.mask_share import PatchShare
from flwr_splitmix.mixers.masks import Rounding, check_mask_options, checked_alpha, sample_counts
from flwr_splitmix.mixers.plan import Group, Member, Plan, SmashedShape
from flwr_splitmix.values import check_choice, check_truth

Gradient = Literal["unicast", "broadcast"]


class PatchCutMix(GroupMixer):
    """Exclusive, exhaustive random masks over the patches of `k` clients.

    Parameters
    ----------
    k, regroup, leftover
        Groups of clients; see `GroupMixer`.
    alpha
        Concentration of the Dirichlet distribution of the mixing ratios; None makes them as even
        as possible.
    rounding, min_patches
        How ratios become counts; see `sample_counts`.
    gradient
        "unicast": each client gets the gradient of its own patches. "broadcast": each gets its
        group's whole gradient and backpropagates it through its unmasked smashed data. The server
        draws the masks here, so broadcast is an algorithm, not a protection.
    k_times
        Make `k` passes over each group with fresh masks; the gradient of pass r reaches only the
        r-th member, and the server updates once per pass.
    mask_per_sample
        Draw the positions for every sample of the batch instead of once for the batch.

    Raises
    ------
    ValueError
        If `k` < 2, `alpha` <= 0, or an option is not one of those allowed.

    Source: CutMixSL, sections 3.2-3.3, algorithm 2 and eq. 13.
    """

    def __init__(
        self,
        k: int = 2,
        alpha: float | None = 6.0,
        *,
        rounding: Rounding = "multinomial",
        min_patches: int = 0,
        gradient: Gradient = "unicast",
        regroup: Regroup = "step",
        leftover: Leftover = "send",
        k_times: bool = False,
        mask_per_sample: bool = False,
    ) -> None:
        super().__init__(k, regroup=regroup, leftover=leftover)
        check_mask_options(alpha, rounding, min_patches)
        check_choice("gradient", gradient, get_args(Gradient))
        check_truth("k_times", k_times)
        check_truth("mask_per_sample", mask_per_sample)
        self.alpha = checked_alpha(alpha)
        self.rounding = rounding
        self.min_patches = min_patches
        self.gradient = gradient
        self.k_times = k_times
        self.mask_per_sample = mask_per_sample

    def without_effect(self, patches: int) -> str:
        """Return that a single patch is not mixed."""
        return WHOLE_OR_NOT if patches == 1 else ""

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Draw groups, then counts and positions for each group of each pass."""
        if not self.k_times:
            return super().plan(members, shape, rng, order_rng)
        groups = self.groups(members, rng, order_rng)
        passes = tuple(
            tuple(
                _only_one_learns(self.group(clients, shape, rng), turn)
                for clients in groups
                if turn < len(clients)
            )
            for turn in range(self.k)
        )
        return Plan(shape, tuple(drawn for drawn in passes if drawn) or ((),))

    def mix(
        self, clients: Sequence[int], shape: SmashedShape, rng: np.random.Generator
    ) -> Sequence[Member]:
        """Give members consecutive slices of one random order of the patches."""
        n = shape.patches
        counts = sample_counts(
            n, len(clients), self.alpha, rng, rounding=self.rounding, min_patches=self.min_patches
        )
        seed = int(rng.integers(2**32))
        slices = pairwise(accumulate(map(int, counts), initial=0))
        return [
            Member(
                client,
                PatchShare(
                    lam=(stop - start) / n,
                    patches=n,
                    prefix=shape.prefix,
                    broadcast=self.gradient == "broadcast",
                    seed=seed,
                    start=start,
                    stop=stop,
                    per_sample=self.mask_per_sample,
                ),
            )
            for client, (start, stop) in zip(clients, slices, strict=True)
        ]


def _only_one_learns(group: Group, turn: int) -> Group:
    return Group(
        tuple(
            replace(member, share=replace(member.share, learns=place == turn))
            for place, member in enumerate(group.members)
        )
    )
