"""Random Cutout: each client keeps some random patches of its own; the others stay empty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_splitmix.mixers.mask_share import PatchShare
from flwr_splitmix.mixers.masks import checked_alpha, sample_counts
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.plan import Plan, SmashedShape, each_alone
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.values import check_truth, real_number

FIXED = "fixed cutout"
"""Purpose of the seed for fixed positions."""


class RandomCutout(Mixer):
    """Masks without a partner: what a client leaves out stays empty; its label is unchanged.

    Parameters
    ----------
    ratio
        Fraction of the patches kept, 0 < ratio <= 1; None draws it for each client and step, as
        patch CutMix does for the first of two clients. At least one patch is kept, as the label
        stays whole.
    alpha
        Concentration of that draw; None is one half.
    mask_per_sample
        Draw the positions for every sample of the batch instead of once for the batch.
    fixed_positions
        Do not draw positions: each client has one order of the patches for every step of every
        run, and keeps the first ones; with `mask_per_sample`, one order per place in the batch.

    Raises
    ------
    ValueError
        If `ratio` or `alpha` is outside its range.

    Source: CutMixSL, "CutSmashed data", figure 2 and table 1; DP-CutMixSL, section 6 ("the single
    client case of Random CutMix").
    """

    cover = "partial"

    def __init__(
        self,
        ratio: float | None = None,
        alpha: float | None = 6.0,
        *,
        mask_per_sample: bool = False,
        fixed_positions: bool = False,
    ) -> None:
        if ratio is not None and not 0 < (ratio := real_number("ratio", ratio)) <= 1:
            raise ValueError(
                f"ratio is {ratio}; it must be above 0 and at most 1, or None to draw it"
            )
        check_truth("mask_per_sample", mask_per_sample)
        check_truth("fixed_positions", fixed_positions)
        self.ratio = ratio
        self.alpha = checked_alpha(alpha)
        self.mask_per_sample = mask_per_sample
        self.fixed_positions = fixed_positions

    def without_effect(self, patches: int) -> str:
        """Return that nothing is left out of a single patch."""
        cuts = patches == 1 and self.ratio != 1
        return "leaves nothing out: one patch is always sent" if cuts else ""

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Draw each client's kept patches."""
        return each_alone(shape, ((client, self._share(client, shape, rng)) for client in members))

    def _share(self, client: int, shape: SmashedShape, rng: np.random.Generator) -> PatchShare:
        if self.ratio is None:
            count = int(sample_counts(shape.patches, 2, self.alpha, rng)[0])
        else:
            count = round(self.ratio * shape.patches)
        drawn = int(rng.integers(2**32))
        return PatchShare(
            patches=shape.patches,
            prefix=shape.prefix,
            seed=derive_seed(0, FIXED, client) % 2**32 if self.fixed_positions else drawn,
            start=0,
            stop=max(1, count),
            per_sample=self.mask_per_sample,
        )
