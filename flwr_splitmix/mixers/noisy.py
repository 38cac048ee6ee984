"""Noise added to a share: clipping, Gaussian noise on smashed data, and noise on labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.labels import known_rows
from flwr_splitmix.mixers.checked_mixer import checked_plan
from flwr_splitmix.mixers.checked_share import place_upload, uploaded
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.plan import Group, Member, Plan, SmashedShape
from flwr_splitmix.mixers.share import MAX_CLASSES, LabelKind, Plain, Share, share_from_wire
from flwr_splitmix.mixers.wrapper import WrappedMixer
from flwr_splitmix.privacy.mechanism import (
    add_noise,
    clip_smashed,
    label_range,
    noisy_labels,
    smashed_limit,
)
from flwr_splitmix.privacy.noise import GaussianNoise

NO_LABEL_NOISE = (
    "the noise on labels (sigma-y) is for examples of one class each, and these have several "
    "labels: one example would change more of them than the accountant counts; use sigma-y 0.0 "
    "with them"
)
"""Why multi-label examples get no noise on their labels."""


@dataclass(frozen=True, kw_only=True)
class NoisyShare(Share):
    """Another share's upload of clipped smashed data, with Gaussian noise, and noisy soft labels.

    The client draws fresh noise for every upload; nothing that is sent lets anybody reproduce it.
    The returned gradient is that of the upload with or without noise: both are the same.

    Parameters
    ----------
    inner
        The share applied to the clipped smashed data.
    noise
        The clipping and the noise.
    classes
        Number L of classes.
    """

    name: ClassVar[str] = "noisy"
    deterministic: ClassVar[bool] = False
    inner: Share
    noise: GaussianNoise
    classes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.lam, self.learns) != (self.inner.lam, self.inner.learns):
            raise ValueError("a noisy share and the one inside must have one lam and one learns")
        if self.inner.label_kind != "classes":
            raise ValueError(f"share {self.inner.name!r} sends no classes that noise could cover")
        if not 1 <= self.classes <= MAX_CLASSES:
            raise ValueError(f"classes is {self.classes}; it must be from 1 to {MAX_CLASSES}")

    @classmethod
    def around(cls, inner: Share, noise: GaussianNoise, classes: int) -> Self:
        """Add noise to a share."""
        return cls(lam=inner.lam, learns=inner.learns, inner=inner, noise=noise, classes=classes)

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        """Clip, upload as the inner share does, and add noise to the upload.

        All of it in float32 or wider: smaller dtypes would round what the accountant prices.
        """
        exact = smashed.to(torch.promote_types(smashed.dtype, torch.float32))
        upload, anchor = uploaded(self.inner, clip_smashed(exact, self.noise))
        if not self.lam:
            # Zero times a number keeps its sign, and nothing is charged at ratio 0.
            upload = torch.zeros_like(upload)
        if self._everywhere:
            whole = torch.zeros_like(exact)
            place_upload(self.inner, whole, upload)
            upload = whole
        return add_noise(upload, self.noise.sigma_s).to(smashed.dtype), anchor

    def upload_shape(self, smashed: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the shape of the upload: all positions, if all of them get noise."""
        return smashed if self._everywhere else self.inner.upload_shape(smashed)

    def place(self, mixed: Tensor, upload: Tensor) -> None:
        """Add the upload, including its noise."""
        if self._everywhere:
            mixed += upload
        else:
            place_upload(self.inner, mixed, upload)

    def pick(self, gradient: Tensor) -> Tensor:
        """Return the inner share's gradient; noise has none."""
        return self.inner.pick(gradient)

    def part(self, first: int) -> NoisyShare:
        """Return the inner share's part for the samples from `first` on, with the same noise."""
        return replace(self, inner=self.inner.part(first))

    @property
    def label_kind(self) -> LabelKind:
        """Soft labels, weighted and noised by the client."""
        return "soft"

    def upload_labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Return noisy soft labels (b, L), weighted by `lam`.

        A class outside 0..L-1 is noise alone. An error would reveal, without noise, that the batch
        has one; and the server chooses L.

        Raises
        ------
        ValueError
            If there is noise on multi-label examples (`NO_LABEL_NOISE`).
        """
        if labels.dim() == 2 and self.noise.sigma_y:
            raise ValueError(NO_LABEL_NOISE)
        exact = torch.promote_types(dtype, torch.float32)
        hard = known_rows(labels, self.classes, exact)
        return noisy_labels(hard, self.lam, self.noise).to(dtype)

    @property
    def noised(self) -> bool:
        """Whether there is noise on the smashed data."""
        return self.noise.sigma_s > 0

    @property
    def labels_noised(self) -> bool:
        """Whether there is noise on the labels."""
        return self.noise.sigma_y > 0

    @property
    def masked(self) -> bool:
        """Whether the inner share leaves patches out."""
        return self.inner.masked

    @property
    def overwrites(self) -> bool:
        """Whether the inner share does: several of them would make no mixture."""
        return self.inner.overwrites

    @property
    def label_range(self) -> tuple[float, float]:
        """The smallest and the largest number that noise can make of a label."""
        return label_range(self.noise)

    @property
    def smashed_limit(self) -> float:
        """The bound by clipping and noise; infinite for shares that may make numbers larger."""
        # A subclass might clip nothing.
        is_bounded = type(self) is NoisyShare and self.inner.family and not self.inner.enlarges
        return smashed_limit(self.noise) if is_bounded else math.inf

    @property
    def summed(self) -> bool:
        """Whether the inner share is summed, or noise is added by all members at every position."""
        return self._everywhere or self.inner.summed

    @property
    def _everywhere(self) -> bool:
        return self.noise.smashed_noise == "all"

    def to_wire(self) -> dict[str, Plain]:
        """Return the share as plain values."""
        return {
            "share": self.name,
            "inner": self.inner.to_wire(),
            "noise": dict(self.noise.to_plain()),
            "classes": self.classes,
        }

    @classmethod
    def from_wire(cls, values: Mapping[str, Any], known: Iterable[type[Share]]) -> Self:
        """Make the share and its inner share."""
        if values.keys() != {"inner", "noise", "classes"}:
            raise ValueError("share 'noisy' needs inner, noise and classes, and nothing else")
        if type(values["classes"]) is not int or not isinstance(values["noise"], Mapping):
            raise ValueError("share 'noisy': classes must be int and noise a dictionary")
        inner = share_from_wire(values["inner"], known)
        return cls.around(inner, GaussianNoise.from_plain(values["noise"]), values["classes"])


def without_noise(share: Share) -> Share:
    """Return the share inside a noisy one; any other as it is."""
    return share.inner if isinstance(share, NoisyShare) else share


class Noisy(WrappedMixer):
    """Makes every client clip its smashed data and add Gaussian noise to everything it sends.

    Parameters
    ----------
    mixer
        Mixes the clipped smashed data: `PatchCutMix` (DP-CutMixSL), `Mixup` (DP-MixSL),
        `NoMixing` (DP-SL), ...
    noise
        The clipping and the noise.

    Raises
    ------
    ValueError
        If the mixer's clients send no labels of their own, or mix raw inputs: a record is then
        part of several uploads, which this accounting does not cover.

    Source: DP-CutMixSL, section 4 and table 1.
    """

    def __init__(self, mixer: Mixer, noise: GaussianNoise) -> None:
        super().__init__(mixer)
        if not mixer.takes_noise:
            raise ValueError(
                f"{mixer} takes no noise: it has no labels to cover, or mixes inputs; allowed with "
                "it are sigma-s 0.0 and sigma-y 0.0"
            )
        self.noise = noise

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Draw the inner mixer's plan and add noise to every share in it."""
        plan = checked_plan(self.mixer, self.mixer.plan(members, shape, rng, order_rng))
        passes = tuple(
            tuple(
                Group(tuple(self._noisy(member, shape.classes) for member in group.members))
                for group in groups
            )
            for groups in plan.passes
        )
        return replace(plan, passes=passes)

    def _noisy(self, member: Member, classes: int) -> Member:
        return replace(member, share=NoisyShare.around(member.share, self.noise, classes))
