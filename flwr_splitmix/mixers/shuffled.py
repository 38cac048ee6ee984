"""Shuffling: the patches of every mixed sample are permuted before the upper segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.mixers.checked_mixer import checked_plan
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.mixture import Mixed, Upload
from flwr_splitmix.mixers.plan import Plan, SmashedShape, grow
from flwr_splitmix.mixers.wrapper import WrappedMixer
from flwr_splitmix.seeding import derive_seed


@dataclass(frozen=True)
class ShuffledPlan(Plan):
    """A plan with the seed of the permutations, which stays at the mixer.

    Parameters
    ----------
    first, whole
        In the plan of a part: its first sample in the batch, and the batch size; otherwise 0.
    """

    seed: int
    first: int = 0
    whole: int = 0

    def only(self, group: int) -> Self:
        """Return the plan of one group alone, with its own permutations."""
        return replace(super().only(group), seed=derive_seed(self.seed, "group", group))

    def part(self, first: int, samples: int) -> Self:
        """Return the plan of a part, whose samples are permuted as in the whole batch."""
        whole = self.whole or self.shape.batch
        return replace(super().part(first, samples), first=self.first + first, whole=whole)

    def order(self, groups: int) -> Tensor:
        """Draw which patch goes to each slot of each mixed sample: int64 (groups * b, N)."""
        # Only the mixer draws these: no other machine must reproduce them.
        batch, patches = self.whole or self.shape.batch, self.shape.patches
        draws = np.random.default_rng(self.seed).random((groups, batch, patches))
        part_draws = draws[:, self.first : self.first + self.shape.batch].reshape(-1, patches)
        return torch.from_numpy(np.argsort(part_draws, axis=1))


@dataclass(frozen=True)
class ShuffledMixed(Mixed):
    """A mixture whose patches have changed places.

    Parameters
    ----------
    order
        int64 (groups * b, N): the patch at each slot.
    """

    order: Tensor


class Shuffled(WrappedMixer):
    """Permutes the N patches of every sample that another mixer made; prefix tokens stay.

    The gradient is put back in order before it is split. Position embeddings must be added in the
    upper segment, by slot. Added earlier, they would reveal every patch's place, and a transformer,
    whose output does not depend on the order of its tokens, would be unaffected by the shuffle.

    Parameters
    ----------
    mixer
        Makes the mixture, for example `PatchCutMix` (Shuffled CutMix) or `NoMixing` (shuffling
        alone).

    Source: CutMixSL, eq. 12 and appendix "Shuffling"; DP-CutMixSL, table 7.
    """

    positions = "upper"

    def __init__(self, mixer: Mixer) -> None:
        super().__init__(mixer)
        if mixer.positions is not None:
            raise ValueError(f"{type(mixer).__name__} already moves the patches")

    def without_effect(self, patches: int) -> str:
        """Return what the inner mixer does not do, or that nothing is moved."""
        return super().without_effect(patches) or ("moves nothing" if patches == 1 else "")

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> ShuffledPlan:
        """Draw the inner mixer's plan and the seed of the permutations."""
        plan = checked_plan(self.mixer, self.mixer.plan(members, shape, rng, order_rng))
        return grow(plan, ShuffledPlan, seed=int(rng.integers(2**63)))

    def merge(
        self,
        uploads: Mapping[int, Upload],
        plan: Plan,
        *,
        num_classes: int,
        device: torch.device | None = None,
    ) -> ShuffledMixed:
        """Mix the uploads that arrived and permute the patches of each sample."""
        assert isinstance(plan, ShuffledPlan)
        mixed = self.mixer.merge(uploads, plan, num_classes=num_classes, device=device)
        order = plan.order(len(mixed.sources)).to(mixed.smashed.device)
        smashed = rearranged(mixed.smashed, order, plan.shape.prefix)
        return grow(replace(mixed, smashed=smashed), ShuffledMixed, order=order)

    def split(self, gradient: Tensor, mixed: Mixed, plan: Plan) -> dict[int, list[Tensor | None]]:
        """Put the gradient back in order, then give each client its own."""
        assert isinstance(mixed, ShuffledMixed)
        ordered = rearranged(gradient, mixed.order.argsort(dim=1), plan.shape.prefix)
        return self.mixer.split(ordered, mixed, plan)


def rearranged(tokens: Tensor, order: Tensor, prefix: int) -> Tensor:
    """Return tokens (b, prefix + N, d) with each example's patches in its `order`, int64 (b, N)."""
    patches = tokens[:, prefix:]
    moved = patches.gather(1, order[:, :, None].expand_as(patches))
    return torch.cat([tokens[:, :prefix], moved], dim=1) if prefix else moved
