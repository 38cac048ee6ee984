"""Releases, what an adversary receives in one step; and the kinds of adversaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Adversary = Literal["server", "upper only", "sum only", "member of the group", "eavesdropper"]
"""The adversaries, and what they see.

"server": the curious server with its mixer: every upload, its masks, gradients in both directions.
"upper only": an upper segment behind someone else's mixer: mixtures and their targets.
"sum only": a server that draws the plan and sees the sum of a group's uploads, not single uploads.
"member of the group": another client of the mixing group: what the server sends to it, and the
labels of its own examples.
"eavesdropper": everything that crosses an unprotected link, but nothing that the server has itself.
"""


@dataclass(frozen=True)
class Release:
    """The data that an adversary receives in one step, from one client or as one mixture.

    Parameters
    ----------
    server_round, step
        Round and step; the step is counted within the round, from 0.
    client
        The sender; None for a mixture, or if unknown to the adversary.
    smashed
        float32 (b, prefix + N, d), with patches in the places where the adversary has them; 0
        where none was received.
    mask
        bool (b, N): patches received; None if unknown to the adversary.
    owners
        int64 (b, N), for a mixture: the client of each patch, -1 for none; None if unknown.
    lam
        Mixing ratio of the client in its group; None for a mixture, or if unknown.
    labels
        int64 (b,), or soft labels, float (b, L), as received; None if none were.
    ids
        int64 (b,): the same number for the same example of a client; None if none were received.
    gradient
        (b, prefix + N, d), placed likewise: the gradient returned for the release; None if the
        adversary does not see it.
    loss
        (b,), or a scalar, the mean over the step; None if the adversary does not see it.
    number
        Position of the release within its step.
    own_labels
        int64 (b,), or (b, L) if an image may have several: for a member of the group, the labels of
        its own examples in the mixture, which no client sent it; None for others.
    undone, undone_mask
        Smashed data and mask as an adversary that knows the share restores them (`Share.undo`);
        None if that changes nothing. The upper segment is trained on `smashed`.
    """

    server_round: int
    step: int
    client: int | None
    smashed: Tensor
    mask: Tensor | None = None
    owners: Tensor | None = None
    lam: float | None = None
    labels: Tensor | None = None
    ids: Tensor | None = None
    gradient: Tensor | None = None
    loss: Tensor | None = None
    number: int = 0
    own_labels: Tensor | None = None
    undone: Tensor | None = None
    undone_mask: Tensor | None = None


@dataclass(frozen=True)
class Origin:
    """The origin of a release's rows.

    Parameters
    ----------
    sources
        int64 (b, s): for each row, the positions of its images in a set of images, one column per
        member of the group; -1 if a member's batch is unknown.
    members
        The clients of the columns, in order; a client that occurs again stands for further
        examples of its own batch.
    order
        int64 (b, N): the patch at each slot, if a method moves patches: `j` is patch j of the
        row's own image; if patches are exchanged within the batch, `i N + j` is patch j of row i.
        None if patches are in their places.
    owners
        int64 (b, N): the member (a client's index) that each patch comes from, -1 for none; None
        if each patch is a sum.
    """

    sources: Tensor
    members: tuple[int, ...]
    order: Tensor | None = None
    owners: Tensor | None = None


@dataclass(frozen=True)
class Simulated(Release):
    """A release of an attacker's own images, with known origin.

    Parameters
    ----------
    origin
        Positions in the images passed to `Knowledge.simulate`.
    """

    origin: Origin | None = None
