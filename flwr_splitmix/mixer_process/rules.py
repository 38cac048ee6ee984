"""The rules of a mixer's operator."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from flwr_splitmix.links.link import LinkError
from flwr_splitmix.values import real_number, whole_number


@dataclass(frozen=True)
class MixerRules:
    """The rules set by a mixer's operator, whatever a ServerApp asks for.

    Parameters
    ----------
    seed
        For groups, ratios and masks; the server must not know it. None draws one per stream.
    least_members
        Fewest members of a group, at least 2: a smaller group is not asked to upload, and a group
        that has shrunk below it is not mixed.
    least_patches
        Fewest patches that each member of a patch CutMix group keeps (`min_patches`), at least 1:
        with few, another member may keep nearly all.
    most_ratio
        Largest mixing ratio of a member, above 0 and at most 1, including among those left of a
        group that has shrunk: a group with a larger one is not mixed.

    Raises
    ------
    LinkError
        If one of them is not a number, or outside its range.
    """

    seed: int | None = field(default=None, repr=False)
    least_members: int = 2
    least_patches: int = 1
    most_ratio: float = 0.95

    def __post_init__(self) -> None:
        try:
            whole_number("--least-members", self.least_members, 2)
            whole_number("--least-patches", self.least_patches, 1)
            ratio = real_number("--most-ratio", self.most_ratio)
        except ValueError as error:
            raise LinkError(str(error)) from None
        if not 0 < ratio <= 1:  # nor NaN, which the command line lets pass
            raise LinkError(f"--most-ratio is {ratio}; it must be a number above 0, at most 1")


def draw_seed() -> int:
    """Draw a seed for groups, ratios and masks from the operating system."""
    return secrets.randbits(63) | 1 << 62
