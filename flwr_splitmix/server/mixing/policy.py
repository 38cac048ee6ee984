"""The policy of a mixer's operator."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from flwr_splitmix.links.link import LinkError


@dataclass(frozen=True)
class Policy:
    """The rules set by a mixer's operator, whatever a ServerApp asks for.

    Parameters
    ----------
    seed
        For groups, ratios and masks; the server must not know it. None draws one per stream.
    least_members
        Fewest members of a group, at least 2: a smaller group is not asked to upload, and a group
        that has shrunk below it is not mixed.
    least_patches
        Fewest patches that each member of a patch CutMix group keeps (`min_patches`): with few,
        another member may keep nearly all.
    most_ratio
        Largest mixing ratio of a member, also among those left of a group that has shrunk: a group
        with a larger one is not mixed.

    Raises
    ------
    LinkError
        If `most_ratio` is not in 0..1.
    """

    seed: int | None = field(default=None, repr=False)
    least_members: int = 2
    least_patches: int = 1
    most_ratio: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.most_ratio <= 1:  # nor NaN, which the command line lets pass
            raise LinkError(f"--most-ratio is {self.most_ratio}; allowed is a number in 0.5..1")


def draw_seed() -> int:
    """Draw a seed for groups, ratios and masks from the operating system."""
    return secrets.randbits(63) | 1 << 62
