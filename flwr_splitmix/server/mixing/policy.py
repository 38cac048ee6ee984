"""What the operator of a mixer decides."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Policy:
    """What the operator of a mixer has decided, whatever a ServerApp asks for.

    Parameters
    ----------
    seed
        Of groups, ratios and masks; the server must not know it. None draws one for each stream.
    least_members
        Fewest members of a group, 2 at least: a smaller one is not asked, and of one that has lost
        members no mixture is made.
    least_patches
        Fewest patches that each member of a group of patch CutMix keeps (`min_patches`): with few,
        another member may keep nearly all.
    most_ratio
        Largest mixing ratio of a member: of a group in which one has more no mixture is made.
    """

    seed: int | None = field(default=None, repr=False)
    least_members: int = 2
    least_patches: int = 1
    most_ratio: float = 0.95


def draw_seed() -> int:
    """Draw a seed of groups, ratios and masks from the operating system."""
    return secrets.randbits(63) | 1 << 62
