"""Shares of whole patches at given positions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.mixers.masks import patch_order
from flwr_splitmix.mixers.plain import NOT_SENT
from flwr_splitmix.mixers.share import Share
from flwr_splitmix.overriding import overridden
from flwr_splitmix.privacy.events import Family


@dataclass(frozen=True, kw_only=True)
class MaskShare(Share):
    """Some patches unchanged, the others left out; prefix tokens scaled by the mixing ratio.

    A subclass defines the kept patches in `positions`.

    Parameters
    ----------
    patches, prefix
        Number N of patch tokens, and of prefix tokens before them. Prefix tokens have attended to
        the whole image (cut at a block); they are not masked but summed, weighted by `lam`.
    broadcast
        Whether the client backpropagates its group's whole gradient through its unmasked smashed
        data (CutMixSL eq. 13) instead of its own patches' gradient (unicast).
    """

    family: ClassVar[Family | None] = "cutmix"
    enlarges: ClassVar[bool] = False
    _acts: ClassVar[tuple[str, ...]] = (*Share._acts, "positions", "count")
    patches: int
    prefix: int = 0
    broadcast: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefix < 0:
            raise ValueError(f"prefix is {self.prefix}; it must be at least 0")

    @abstractmethod
    def positions(self, batch: int) -> Tensor:
        """Return the kept patches: int64 (a,), or (batch, a) if they differ between samples."""

    @abstractmethod
    def count(self) -> int:
        """Return the number a of kept patches."""

    @property
    def masked(self) -> bool:
        """Whether patches are left out of an upload: yes."""
        return True

    def kept_patches(self, batch: int) -> Tensor:
        """Return the kept patches of the `batch` samples that the share is for, checked.

        Raises
        ------
        ValueError
            If they are not integers of one of the two shapes, are not `count` in number, or
            lie outside 0..N-1, or if one is given twice, so that a patch would be sent more often
            than the accounting of noise knows.
        """
        positions, count = self._kept_positions(batch), self.count()
        if not isinstance(positions, Tensor) or positions.dtype != torch.int64:
            kind = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
            raise ValueError(
                f"`positions` of share {self.name!r} must return an int64 tensor, got {kind}"
            )
        if positions.shape not in ((count,), (batch, count)):
            raise ValueError(
                f"`positions` of share {self.name!r} must have the shape ({count},) or "
                f"({batch}, {count}), as its `count` is {count}; got {tuple(positions.shape)}"
            )
        ordered = np.sort(positions.cpu().numpy(), axis=-1)
        if ordered.size and not 0 <= ordered.min() <= ordered.max() < self.patches:
            raise ValueError(
                f"share {self.name!r} keeps patches {ordered.min()} to {ordered.max()}; expected "
                f"0 to {self.patches - 1}"
            )
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise ValueError(f"share {self.name!r} keeps a patch twice; `positions` must differ")
        return positions

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        """Upload (b, prefix + a, d): the scaled prefix and the kept patches.

        Raises
        ------
        ValueError
            If the smashed data do not have the share's number of tokens, or as `kept_patches`.
        """
        if smashed.shape[1] != self.prefix + self.patches:
            raise ValueError(
                f"the share is for {self.prefix} + {self.patches} tokens, "
                f"the smashed data have {smashed.shape[1]}"
            )
        upload = _selected(self, self.lam * smashed[:, : self.prefix], smashed)
        return upload, smashed if self.broadcast else upload

    def upload_shape(self, smashed: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return (b, prefix + a, d)."""
        return smashed[0], self.prefix + self.count(), smashed[2]

    def place(self, mixed: Tensor, upload: Tensor) -> None:
        """Write the kept patches to their positions and add the prefix."""
        at = self._kept_positions(len(mixed)).to(mixed.device)
        patches, uploaded_patches = mixed[:, self.prefix :], upload[:, self.prefix :]
        if at.ndim == 1:
            patches.index_add_(1, at, uploaded_patches)
        else:
            patches.scatter_add_(1, at[:, :, None].expand_as(uploaded_patches), uploaded_patches)
        if self.prefix:
            mixed[:, : self.prefix] += upload[:, : self.prefix]

    def pick(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the upload (unicast) or of the whole mixture (broadcast)."""
        if self.broadcast:
            return gradient
        return _selected(self, gradient[:, : self.prefix], gradient)

    @property
    def summed(self) -> bool:
        """Whether there are prefix tokens; each patch is one member's."""
        return self.prefix > 0

    def _kept_positions(self, batch: int) -> Tensor:
        """Return the kept patches, unchecked."""
        return self.positions(batch)


def _selected(share: MaskShare, prefix: Tensor, tokens: Tensor) -> Tensor:
    """Return a prefix (b, prefix, d), and behind it the kept patches of tokens (b, prefix + N, d).

    No method, so that a subclass that selects otherwise overrides `upload` and `pick`.
    """
    at = share.kept_patches(len(tokens)).to(tokens.device)
    patches = tokens[:, share.prefix :] if share.prefix else tokens
    if at.ndim == 1:
        selected = patches.index_select(1, at)
    else:
        selected = patches.gather(1, at[:, :, None].expand(-1, -1, patches.shape[2]))
    return torch.cat([prefix, selected], dim=1) if share.prefix else selected


@dataclass(frozen=True, kw_only=True)
class PatchShare(MaskShare):
    """Patches `start` to `stop` of a seeded permutation of all patches.

    The members of a group have the same seed and consecutive slices: their masks are exclusive
    and exhaustive. With `per_sample`, every sample of the batch has its own permutation.

    Parameters
    ----------
    first
        The sample of the batch at which the share begins; above 0 for a part of a batch (`part`).
    """

    name: ClassVar[str] = "patches"
    family: ClassVar[Family | None] = "cutmix"
    _sliced: ClassVar[bool] = True
    """Whether the kept patches are a slice of a permutation, and so are what is asked of them.

    A subclass with `positions` or `count` of its own has False: they are checked in each step.
    """
    seed: int
    start: int
    stop: int
    per_sample: bool = False
    # Not sent, as each side makes the parts itself: a huge one would cost a client's memory.
    first: int = field(default=0, metadata=NOT_SENT)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if overridden(cls, ("positions", "count"), "_sliced"):
            cls._sliced = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first < 0:
            raise ValueError(f"first is {self.first}; it must be at least 0")
        if not 0 <= self.start <= self.stop <= self.patches:
            raise ValueError(f"slice {self.start}:{self.stop} is not within {self.patches} patches")

    def positions(self, batch: int) -> Tensor:
        """Return this member's slice of the permutation, for the first `batch` samples of a batch.

        A part of a batch may begin later; `kept_patches` returns those of its samples.
        """
        order = patch_order(self.seed, self.patches, batch if self.per_sample else None)
        return torch.from_numpy(order[..., self.start : self.stop].copy())

    def count(self) -> int:
        """Return the length of the slice."""
        return self.stop - self.start

    def kept_patches(self, batch: int) -> Tensor:
        """Return the kept patches; see `MaskShare.kept_patches`."""
        return self._kept_positions(batch) if self._sliced else super().kept_patches(batch)

    def part(self, first: int) -> Self:
        """Return the share for the samples from `first` on, which keep their patches.

        They are `positions` of the whole batch, including those of a subclass; a sample's must not
        depend on how many follow it. An `upload` or `place` of its own asks `kept_patches` for
        them.
        """
        return replace(self, first=self.first + first)

    @final
    def _kept_positions(self, batch: int) -> Tensor:
        """Return the kept patches of `batch` samples from sample `first` on, unchecked."""
        positions = self.positions(self.first + batch)
        return positions[self.first :] if positions.ndim == 2 else positions
