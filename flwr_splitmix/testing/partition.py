"""Law 3, masks partition: masks are exclusive and exhaustive, and mixing ratios are realised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.mixers import Group, Member, Mixer, SmashedShape
from flwr_splitmix.mixers.checked_mixer import check_mixer, checked_plan
from flwr_splitmix.mixers.checked_share import place_upload
from flwr_splitmix.mixers.noisy import without_noise

LAW = "law 3, masks partition"


def check_masks_partition(
    mixer: Mixer,
    *,
    clients: int = 5,
    patches: int = 16,
    batch: int = 3,
    prefix: int = 0,
    seed: int = 0,
) -> None:
    """Draw a plan and check the contribution of each member of each group to the mixture.

    A client whose smashed data are all ones contributes ones in the places of its mask and zeros
    elsewhere. The mixer declares which law holds (`Mixer.cover`): with "weighted", a client
    contributes its mixing ratio everywhere instead; with "partial", it can be alone in its group,
    and patches may have no owner.

    Unless the mixer needs whole batches, each member must contribute the same to a sample if the
    batch is sent in parts (`micro_batches`).

    Raises
    ------
    AssertionError
        If a patch belongs to no member or to two, a mixing ratio is not the number of kept patches
        over N, the ratios of a group do not sum to 1, or a client is in no group or in two; or if
        a share does otherwise in a part of a batch.
    """
    shape = SmashedShape(batch, patches, width=2, prefix=prefix, grid=_grid(patches), classes=2)
    rng, order_rng = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    check_mixer(mixer)
    unchecked_plan = mixer.plan(
        range(clients), shape, rng, order_rng if mixer.regroup == "epoch" else None
    )
    plan = checked_plan(mixer, unchecked_plan)
    placed = [m.client for group in plan.passes[0] for m in group.members]
    if sorted(placed) != list(range(clients)):
        raise AssertionError(f"{LAW}: {clients} clients were grouped as {sorted(placed)}")
    for group in plan.groups:
        footprints = [footprint(member, shape) for member in group.members]
        _check_weights(group, footprints, shape)
        if len(group.members) == 1 and mixer.cover == "partial":
            _check_masks(footprints, shape)
        elif len(group.members) > 1 and mixer.cover == "weighted":
            _check_sums(group, footprints, shape)
        else:
            _check_partition(group, footprints, shape)
        for member, mixed in zip(group.members, footprints, strict=True):
            if not mixer.needs_whole_batch:
                _check_parts(member, mixed, shape)


def footprint(member: Member, shape: SmashedShape) -> Tensor:
    """Return the part of its group's mixture that a client adds whose smashed data are all ones.

    For a noisy share, it is what the inner share adds, as noise and clipping move no patch. What a
    share changes by values that the mixer knows, such as signs, is undone (`Share.undo`).

    Raises
    ------
    AssertionError
        If the upload does not have the shape that the share announces.
    """
    share = without_noise(member.share)
    smashed = torch.ones(shape.size, dtype=torch.float64)
    upload, _ = share.upload(smashed)
    expected = share.upload_shape(shape.size)
    if tuple(upload.shape) != expected:
        raise AssertionError(
            f"{LAW}: client {member.client} uploads {tuple(upload.shape)}, announced {expected}"
        )
    mixed = torch.zeros_like(smashed)
    place_upload(share, mixed, upload)
    return share.undo(mixed)


def _check_parts(member: Member, whole: Tensor, shape: SmashedShape) -> None:
    for first in range(shape.batch):
        share = member.share.part(first)
        part = footprint(replace(member, share=share), replace(shape, batch=1))
        if not torch.equal(part, whole[first : first + 1]):
            raise AssertionError(
                f"{LAW}: share {share.name!r} of client {member.client} keeps other patches of "
                f"sample {first} in a part of the batch than in the whole one; it must return in "
                "`part` the share that does the same, or its mixer set `needs_whole_batch`"
            )


def _grid(patches: int) -> tuple[int, int]:
    rows = next(r for r in range(int(patches**0.5), 0, -1) if patches % r == 0)
    return rows, patches // rows


def _check_masks(footprints: Sequence[Tensor], shape: SmashedShape) -> Tensor:
    masks = torch.stack([mixed[:, shape.prefix :] for mixed in footprints])
    if not bool(((masks == 0) | (masks == 1)).all()):
        raise AssertionError(f"{LAW}: a patch is scaled, neither kept as it is nor left out")
    return masks


def _check_partition(group: Group, footprints: Sequence[Tensor], shape: SmashedShape) -> None:
    masks = _check_masks(footprints, shape)
    owners = masks.sum(0)
    if not bool((owners == 1).all()):
        raise AssertionError(
            f"{LAW}: patches have between {int(owners.min())} and {int(owners.max())} owners "
            "in a group, all must have one"
        )
    for member, mask in zip(group.members, masks, strict=True):
        counts = mask.sum((1, 2)) / shape.width  # a share may keep a part of each patch's width
        ratios = counts / shape.patches
        if not bool((ratios - member.share.lam).abs().max() <= 1e-15):
            raise AssertionError(
                f"{LAW}: client {member.client} keeps {counts.tolist()} of {shape.patches} "
                f"patches of the samples, but its mixing ratio is {member.share.lam}"
            )


def _check_sums(group: Group, footprints: Sequence[Tensor], shape: SmashedShape) -> None:
    for member, mixed in zip(group.members, footprints, strict=True):
        weights = mixed[:, shape.prefix :]
        if not bool((weights == member.share.lam).all()):
            raise AssertionError(
                f"{LAW}: client {member.client} weighs its patches by {float(weights.min()):.6g} "
                f"to {float(weights.max()):.6g}, but its mixing ratio is {member.share.lam}"
            )


def _check_weights(group: Group, footprints: Sequence[Tensor], shape: SmashedShape) -> None:
    total = sum(member.share.lam for member in group.members)
    if abs(total - 1) > 1e-12:
        raise AssertionError(f"{LAW}: the mixing ratios of a group sum to {total}")
    prefix = torch.stack([mixed[:, : shape.prefix] for mixed in footprints]).sum(0)
    if not bool(((prefix - 1).abs() <= 1e-12).all()):
        raise AssertionError(f"{LAW}: the weights of prefix tokens do not sum to 1")
