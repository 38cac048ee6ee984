"""A share's description of an upload: which patches it has, where they lie, and whose they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flwr_splitmix.mixers import Member, Share, SmashedShape, WeightedShare
from flwr_splitmix.mixers.noisy import without_noise


def mask_of(share: Share, shape: SmashedShape) -> Tensor:
    """Return the patches that a share sends, if only in part: bool (b, N)."""
    inner = without_noise(share)
    whole = torch.zeros(shape.size)
    inner.place(whole, torch.ones(inner.upload_shape(shape.size)))
    return (whole[:, shape.prefix :] != 0).any(-1)


def placed(share: Share, upload: Tensor, shape: SmashedShape) -> Tensor:
    """Return an upload in its place, float32 (b, prefix + N, d), and 0 elsewhere."""
    whole = torch.zeros(shape.size, dtype=upload.dtype)
    share.place(whole, upload)
    return whole.float()


def undone(share: Share, whole: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return a placed upload and its mask without what the share's values let one take back."""
    kind = type(share)
    if kind.undo is Share.undo:
        return None, None
    batch, tokens, width = whole.shape
    where = torch.zeros_like(whole)
    share.place(where, whole.new_ones(share.upload_shape((batch, tokens, width))))
    prefix = getattr(share, "prefix", 0)
    return share.undo(whole), share.undo(where)[:, prefix:].any(-1)


def placed_gradient(share: Share, gradient: Tensor | None, shape: SmashedShape) -> Tensor | None:
    """Place the gradient returned for an upload; a broadcast one is the whole mixture's."""
    if gradient is None:
        return None
    inner = without_noise(share)
    if getattr(inner, "broadcast", False):
        return gradient.float()
    return placed(inner, gradient, shape)


def owners_of(members: Sequence[Member], shape: SmashedShape) -> Tensor | None:
    """Return each patch's client, int64 (b, N); None if a patch belongs to several."""
    if len(members) > 1 and any(isinstance(without_noise(m.share), WeightedShare) for m in members):
        return None
    owners = torch.full((shape.batch, shape.patches), -1)
    for member in members:
        mask = mask_of(member.share, shape)
        if bool((owners[mask] >= 0).any()):
            return None
        owners[mask] = member.client
    return owners
