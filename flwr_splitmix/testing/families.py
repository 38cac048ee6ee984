"""The law of families: a share sends no more of a sample than its accounting assumes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.mixers import Mixer, Share, SmashedShape
from flwr_splitmix.mixers.checked_mixer import check_mixer, checked_plan
from flwr_splitmix.mixers.checked_share import place_upload, uploaded
from flwr_splitmix.mixers.noisy import without_noise

LAW = "law of families, no share sends more than it is charged for"

_ROUNDING = 1e-9
_SCALES = (1e-3, 1.0, 1e3)


def check_families(
    mixer: Mixer,
    *,
    clients: int = 4,
    patches: int = 16,
    batch: int = 3,
    prefix: int = 1,
    seeds: int = 5,
) -> None:
    """Draw plans, and compare what shares send of random smashed data with their family.

    Families are those of `Share.family`; shares without one have no epsilon and are left out. What
    is compared are squared norms of each sample: of the upload, of the upload in its place in the
    mixture, and of later parts of a batch. So it finds what amplifies or repeats; it is no proof.

    Parameters
    ----------
    seeds
        Number of plans.

    Raises
    ------
    AssertionError
        If a share sends more of a sample than its family allows.
    """
    side = int(patches**0.5)
    grid = (side, side) if side * side == patches else None
    shape = SmashedShape(batch, patches, width=4, prefix=prefix, grid=grid, classes=2)
    check_mixer(mixer)
    for seed in range(seeds):
        unchecked_plan = mixer.plan(range(clients), shape, np.random.default_rng(seed), None)
        plan = checked_plan(mixer, unchecked_plan)
        for client in range(clients):
            shares = [without_noise(share) for share in plan.shares(client) if share is not None]
            for share in shares:
                if share.family is not None:
                    _check(share, client, shape, seed, whole=mixer.needs_whole_batch)


def _check(share: Share, client: int, shape: SmashedShape, seed: int, *, whole: bool) -> None:
    source = torch.Generator().manual_seed(seed)
    for scale in _SCALES:
        smashed = scale * torch.randn(shape.size, dtype=torch.float64, generator=source)
        for first in (0,) if whole else range(shape.batch):
            part, rows = share.part(first) if first else share, smashed[first:]
            allowed = _allowed(share, rows, shape.prefix) * (1 + _ROUNDING)
            for label, norms in _sent_norms(part, rows):
                if bool((norms > allowed).any()):
                    raise AssertionError(
                        f"{LAW}: share {share.name!r} of family {share.family!r}, client {client}: "
                        f"{label} has {float((norms / allowed).max()):.6g} times the squared norm "
                        "of what the family allows; state another family, or None"
                    )


def _sent_norms(share: Share, smashed: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the squared norms (b,) of the values that leave the client."""
    upload, _ = uploaded(share, smashed)
    yield "its upload", upload.square().sum((1, 2))
    mixed = torch.zeros_like(smashed)
    place_upload(share, mixed, upload)
    yield "its upload in place", mixed.square().sum((1, 2))


def _allowed(share: Share, smashed: Tensor, prefix: int) -> Tensor:
    """Return the largest squared norm (b,) that a share's family allows of each sample."""
    each = smashed.square().sum(2)
    if share.family != "cutmix":
        return each.sum(1) * (share.lam**2 if share.family == "mixup" else 1.0)
    kept_patches = (
        share.upload_shape((len(smashed), smashed.shape[1], smashed.shape[2]))[1] - prefix
    )
    largest = each[:, prefix:].topk(min(kept_patches, each.shape[1] - prefix)).values.sum(1)
    return share.lam**2 * each[:, :prefix].sum(1) + largest
