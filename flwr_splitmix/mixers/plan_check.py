"""Checks of a mixer's plans: their members, the labels they ask for, the patches they keep."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from flwr_splitmix.mixers.mask_share import MaskShare
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.noisy import without_noise
from flwr_splitmix.mixers.plan import Group, Plan, SmashedShape


def check_plan(mixer: Mixer, plan: Plan, members: Collection[int], shape: SmashedShape) -> None:
    """Check that a plan is one of these clients, for smashed data of this shape.

    Raises
    ------
    ValueError
        If it is for another shape, has a client that is not in `members`, has one twice in a
        pass, or asks one for ids in a pass and for other labels in another: a client sends either
        once for all passes.
    """
    if plan.shape != shape:
        raise ValueError(
            f"{mixer}: the plan is for {plan.shape}, but `plan` was given {shape}; make the plan "
            "with the shape that is given"
        )
    if strangers := sorted(plan.clients.difference(members)):
        raise ValueError(
            f"{mixer}: the plan has client {strangers[0]!r}, which takes no part in this step; "
            "`plan` may only use the members that it is given"
        )
    for client in plan.clients:
        kinds = {share.label_kind for share in plan.shares(client) if share is not None}
        if "ids" in kinds and len(kinds) > 1:
            raise ValueError(
                f"{mixer}: the plan asks client {client} for ids in one pass and for "
                f"{' and '.join(sorted(kinds - {'ids'}))} in another (`label_kind` of its shares); "
                "if one of its shares asks for ids, all must"
            )


def check_masks(mixer: Mixer, plan: Plan) -> None:
    """Check that the masks of every group cover the patches as the mixer's `cover` says.

    Groups with other shares than those of masks are left out: only law 3 (`testing.laws`) can tell
    what they do.

    Raises
    ------
    ValueError
        If a patch is kept by two members of a group, or, with `cover` "partition", by none; or as
        `MaskShare.kept_patches`.
    """
    if mixer.cover == "weighted":
        return
    for group in plan.groups:
        owners = _owners(group, plan.shape)
        if owners is None:
            continue
        clients = ", ".join(str(member.client) for member in group.members)
        if bool((owners > 1).any()):
            raise ValueError(
                f"{mixer}: the masks of a group (clients {clients}) overlap: patch "
                f"{_first(owners > 1)} is kept {int(owners.max())} times, so its values would be "
                "added up; each patch must be kept by one member"
            )
        if mixer.cover == "partition" and bool((owners < 1).any()):
            raise ValueError(
                f"{mixer}: the masks of a group (clients {clients}) leave out patch "
                f"{_first(owners < 1)}, which would be 0; each patch must be kept by one member, "
                'or let the mixer state that patches may be empty: cover = "partial"'
            )


def _owners(group: Group, shape: SmashedShape) -> Tensor | None:
    """Return how many members keep each patch; None if not all shares are masks.

    Returns
    -------
    int64 (b, N), or (1, N) if all samples have the same masks: clients choose b.
    """
    masks: list[Tensor] = []
    for member in group.members:
        share = without_noise(member.share)
        if not isinstance(share, MaskShare):
            return None
        if (share.patches, share.prefix) != (shape.patches, shape.prefix):
            raise ValueError(
                f"the share is for {share.prefix} + {share.patches} tokens, the smashed data have "
                f"{shape.prefix} + {shape.patches}"
            )
        positions = share.kept_patches(shape.batch)
        masks.append(positions if positions.dim() == 2 else positions[None])
    owners = torch.zeros(max(map(len, masks), default=1), shape.patches, dtype=torch.int64)
    for mask in masks:
        rows = mask.expand(len(owners), -1)
        owners.scatter_add_(1, rows, torch.ones_like(rows))
    return owners


def _first(where: Tensor) -> int:
    """Return the first patch, in any sample, at which a mask (b, N) is true."""
    return int(where.any(0).nonzero()[0])
