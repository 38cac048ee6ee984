"""What an adversary received in one step: a release, and which adversaries there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Adversary = Literal["server", "upper only", "sum only", "member of the group", "eavesdropper"]
"""Who attacks.

"server": the curious server, with its mixer: every upload, its masks, gradients both ways.
"upper only": the upper segment behind a mixer that is somebody else's: mixtures, their targets.
"sum only": a server that draws the plan and sees the sum of a group's uploads, not one of them.
"member of the group": another client of the mixing group: what the server sends to it.
"eavesdropper": all that crosses an unprotected link, but nothing of the server's own.
"""


@dataclass(frozen=True)
class Release:
    """What an adversary received in one step, of one client or of one mixture.

    Parameters
    ----------
    server_round, step
        When; the step is counted within the round, from 0.
    client
        Whose it is; None where the adversary is not told, and for a mixture.
    smashed
        float32 (b, prefix + N, d), patches placed where the adversary has them; 0 where none was
        received.
    mask
        bool (b, N): patches received; None where the adversary does not know.
    owners
        int64 (b, N), of a mixture: the client of each patch, -1 for nobody; None where unknown.
    lam
        Mixing ratio of the client in its group; None for a mixture, and where unknown.
    labels
        int64 (b,), or soft labels, float (b, L), as received; None where none was.
    gradient
        (b, prefix + N, d), placed likewise: what was sent down for it; None where the adversary
        does not see it.
    loss
        (b,), or a scalar, the mean over the step; None where the adversary does not see it.
    number
        Place of the release among those of its step.
    """

    server_round: int
    step: int
    client: int | None
    smashed: Tensor
    mask: Tensor | None = None
    owners: Tensor | None = None
    lam: float | None = None
    labels: Tensor | None = None
    gradient: Tensor | None = None
    loss: Tensor | None = None
    number: int = 0


@dataclass(frozen=True)
class Origin:
    """Where the rows of a release come from.

    Parameters
    ----------
    sources
        int64 (b, s): for each row, the positions of its images in a set of images, one column a
        member of the group; -1 where a member's batch is not known.
    members
        The clients of the columns, in order; the same client several times stands for further
        examples of its own batch.
    order
        int64 (b, N): the patch that stands at each slot, where a method moves them: `j` is patch j
        of the row's own image, `i N + j` patch j of row i where patches are exchanged within the
        batch; None where they stand in their places.
    owners
        int64 (b, N): the member (a client's index) that each patch comes from, -1 for nobody;
        None where each patch is a sum.
    """

    sources: Tensor
    members: tuple[int, ...]
    order: Tensor | None = None
    owners: Tensor | None = None


@dataclass(frozen=True)
class Simulated(Release):
    """A release of an attacker's own images, of which it knows where they are.

    Parameters
    ----------
    origin
        Positions in the images that were handed to `Knowledge.simulate`.
    """

    origin: Origin | None = None
