"""Uploads as releases, for the accounting of differential privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from flwr_splitmix.mixers.mask_share import MaskShare
from flwr_splitmix.mixers.noisy import NoisyShare
from flwr_splitmix.mixers.share import Share
from flwr_splitmix.privacy import GaussianNoise, Release
from flwr_splitmix.privacy.events import Family

NO_NOISE = GaussianNoise(sigma_s=0, sigma_y=0, clip="none")


def covered(share: Share) -> bool:
    """Return whether noise covers a share's upload."""
    return _under_noise(share) is not None


def _under_noise(share: Share) -> tuple[NoisyShare, Family] | None:
    """Return a share whose upload noise covers, with its family; None for any other share."""
    # A subclass might add no noise.
    if type(share) is NoisyShare and share.inner.family is not None:
        return share, share.inner.family
    return None


def release_of(share: Share, tokens: int, width: int, times: int = 1) -> Release:
    """Return the release that accounts for an upload.

    An upload without noise counts as everything, whatever the mask: it has no bound, and
    unweighted labels travel even if no patch does. A mask whose label is not weighted by the
    fraction it keeps (Cutout) counts as the whole sample, which never costs less.

    Parameters
    ----------
    tokens, width
        Prefix + N and d of the smashed data.
    times
        How often it was sent with fresh noise.
    """
    noisy = _under_noise(share)
    if noisy is None:
        return Release(noise=NO_NOISE, patches=tokens, width=width, family="full", times=times)
    outer, family = noisy
    inner, prefix = outer.inner, 0
    if isinstance(inner, MaskShare):
        prefix = inner.prefix
        if not math.isclose(inner.count(), inner.lam * inner.patches, abs_tol=1e-9):
            family = "full"
    return Release(
        noise=outer.noise,
        patches=tokens - prefix,
        width=width,
        prefix=prefix,
        family=family,
        ratio=1.0 if family == "full" else inner.lam,
        times=times,
    )


def earlier_releases(
    shares: Sequence[Share | None], tokens: int, width: int, times: int
) -> list[Release]:
    """Return the releases of a batch in earlier attempts at its round that did not finish.

    Other clients may have taken part then, with other masks, so the masks are assumed to have
    kept everything.

    Parameters
    ----------
    shares
        The batch's share of each pass in this attempt.
    times
        How many times it may have been sent before; 0 returns an empty list.
    """
    releases = (
        [release_of(s, tokens, width, times) for s in shares if s is not None] if times else []
    )
    if not releases:
        return []
    # Every pass, even one without a share this time: the group may have been larger.
    full = replace(releases[0], patches=tokens, prefix=0, family="full", ratio=1.0)
    return [replace(full, times=times * len(shares))]
