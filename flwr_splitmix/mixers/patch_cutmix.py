"""Smashed Patch CutMix: the members of a group each send some patches of their smashed data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal, get_args

import numpy as np

from flwr_splitmix.mixers.masks import Rounding, check_mask_options, sample_counts
from flwr_splitmix.mixers.mixer import Group, Member, Mixer, Plan, SmashedShape
from flwr_splitmix.mixers.share import FullShare, PatchShare

Gradient = Literal["unicast", "broadcast"]
Regroup = Literal["step", "epoch"]


class PatchCutMix(Mixer):
    """Exclusive, exhaustive random masks over the patches of `k` clients.

    Parameters
    ----------
    k
        Clients in a mixing group. Of `n` clients, `n mod k` are left over: two or more form a
        smaller group; a single one sends all its smashed data with its hard label, which is plain
        split learning and protects nothing.
    alpha
        Concentration of the Dirichlet distribution of the mixing ratios; None is as even as
        possible.
    rounding, min_patches
        From ratios to counts; see `sample_counts`.
    gradient
        "unicast": each client gets the gradient of its own patches. "broadcast": each gets its
        group's whole gradient and pushes it through its unmasked smashed data. The server draws
        the masks here, so broadcast is an algorithm, not a protection.
    regroup
        Whether clients are put into new groups every "step" or every "epoch".
    k_times
        Make `k` passes over each group with fresh masks; the gradient of pass r reaches only the
        r-th member, and the server updates once a pass.
    mask_per_sample
        Draw the positions for every sample of the batch instead of once for the batch.

    Raises
    ------
    ValueError
        If `k` < 2, `alpha` <= 0, or an option is not one of those allowed.

    Source: CutMixSL, sections 3.2-3.3, algorithm 2 and eq. 13.
    """

    min_members = 2

    def __init__(
        self,
        k: int = 2,
        alpha: float | None = 6.0,
        *,
        rounding: Rounding = "multinomial",
        min_patches: int = 0,
        gradient: Gradient = "unicast",
        regroup: Regroup = "step",
        k_times: bool = False,
        mask_per_sample: bool = False,
    ) -> None:
        if k < 2:
            raise ValueError(f"k is {k}; a mixing group needs at least 2 clients")
        check_mask_options(alpha, rounding, min_patches)
        for name, value, allowed in (
            ("gradient", gradient, get_args(Gradient)),
            ("regroup", regroup, get_args(Regroup)),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
        self.k = k
        self.alpha = alpha
        self.rounding = rounding
        self.min_patches = min_patches
        self.gradient = gradient
        self.regroup = regroup
        self.k_times = k_times
        self.mask_per_sample = mask_per_sample

    def check_clients(self, n: int) -> None:
        """Refuse a group size larger than the number of clients."""
        if self.k > n:
            raise ValueError(
                f"k is {self.k}, but only {n} clients take part in a round; "
                f"allowed are 2 to {max(n, 2)}"
            )

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Draw groups, then counts and positions for each group of each pass."""
        order = [int(c) for c in (order_rng or rng).permutation(list(members))]
        groups = [order[i : i + self.k] for i in range(0, len(order), self.k)]
        passes = tuple(
            tuple(
                self._group(clients, shape, rng, turn if self.k_times else None)
                for clients in groups
                if turn < len(clients)
            )
            for turn in range(self.k if self.k_times else 1)
        )
        return Plan(shape, tuple(groups for groups in passes if groups))

    def _group(
        self, clients: list[int], shape: SmashedShape, rng: np.random.Generator, turn: int | None
    ) -> Group:
        if len(clients) == 1:
            return Group((Member(clients[0], FullShare()),))
        n = shape.patches
        counts = sample_counts(
            n, len(clients), self.alpha, rng, rounding=self.rounding, min_patches=self.min_patches
        )
        seed = int(rng.integers(2**32))
        slices = pairwise(accumulate(map(int, counts), initial=0))
        return Group(
            tuple(
                Member(
                    client,
                    PatchShare(
                        lam=(stop - start) / n,
                        learns=turn is None or turn == place,
                        patches=n,
                        prefix=shape.prefix,
                        broadcast=self.gradient == "broadcast",
                        seed=seed,
                        start=start,
                        stop=stop,
                        per_sample=self.mask_per_sample,
                    ),
                )
                for place, (client, (start, stop)) in enumerate(zip(clients, slices, strict=True))
            )
        )
