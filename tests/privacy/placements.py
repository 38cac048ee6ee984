"""Every place for the noise, and draws of what is seen then, by the mechanism's own functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.privacy import GaussianNoise, Release
from flwr_splitmix.privacy.events import Family, Seen
from flwr_splitmix.privacy.mechanism import add_noise, clip_smashed, noisy_labels

PATCHES, WIDTH, CLASSES = 8, 3, 3


@dataclass(frozen=True)
class Placement:
    """One place for the noise (docs/privacy.md), for a group of k with even masks."""

    family: Family
    noise: GaussianNoise
    seen: Seen = "alone"
    k: int = 1

    def __str__(self) -> str:
        n = self.noise
        return f"{self.family}-{n.clip}-{n.smashed_noise}-{n.label_noise}-{self.seen}-{self.k}"

    @property
    def release(self) -> Release:
        """What the accountant is told."""
        return Release(
            noise=self.noise,
            patches=PATCHES,
            width=WIDTH,
            family=self.family,
            ratio=1 / self.k,
            seen=self.seen,
            ratios=(1 / self.k,) * self.k if self.seen == "sum" else (),
        )

    def draw(
        self, record: Tensor, label: Tensor, count: int, generator: torch.Generator
    ) -> np.ndarray:
        """Return what is seen of (record, label), `count` times: smashed data and labels, flat.

        The other members send zeros and the last class, which whoever attacks is taken to know.
        """
        members = self.k if self.seen == "sum" else 1
        totals = [torch.zeros(count, PATCHES * WIDTH), torch.zeros(count, CLASSES)]
        other = torch.zeros(PATCHES, WIDTH), torch.eye(CLASSES)[-1]
        for place in range(members):
            smashed, hard = (record, label) if place == 0 else other
            for total, part in zip(
                totals,
                self._upload(
                    place, smashed.expand(count, -1, -1), hard.expand(count, -1), generator
                ),
                strict=True,
            ):
                total += part.flatten(1)
        return torch.cat(totals, dim=1).numpy()

    def _upload(
        self, place: int, smashed: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        noise, lam = self.noise, 1 / self.k
        clipped = clip_smashed(smashed, noise)
        kept_patches = slice(place * PATCHES // self.k, (place + 1) * PATCHES // self.k)
        upload = torch.zeros_like(clipped)
        if self.family != "cutmix":
            upload = add_noise(lam * clipped, noise.sigma_s, generator)
        elif noise.smashed_noise == "kept":
            upload[:, kept_patches] = add_noise(clipped[:, kept_patches], noise.sigma_s, generator)
        else:
            upload[:, kept_patches] = clipped[:, kept_patches]
            upload = add_noise(upload, noise.sigma_s, generator)
        return upload, noisy_labels(labels, lam, noise, generator)


def placements(*, clamp: bool, sigma_s: float = 1.0, sigma_y: float = 1.0) -> list[Placement]:
    """Return every family, placement and view, alone and in groups of 1, 2 and 4."""

    def noise(smashed: str, label: str) -> GaussianNoise:
        return GaussianNoise.from_plain(
            {
                "sigma_s": sigma_s,
                "sigma_y": sigma_y,
                "smashed_noise": smashed,
                "label_noise": label,
                "clamp_labels": clamp,
            }
        )

    views: tuple[Seen, ...] = ("alone", "sum")
    grid = [(label, view, k) for label in ("after", "before") for view in views for k in (1, 2, 4)]
    return [
        Placement("full", noise("kept", "after")),
        *(Placement("cutmix", noise("kept", label), view, k) for label, view, k in grid),
        *(Placement("cutmix", noise("all", label), view, k) for label, view, k in grid),
        *(Placement("mixup", noise("kept", label), view, k) for label, view, k in grid),
    ]


def worst_pair() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return two records as far apart as clipping to norm 1 and a one-hot label allow."""
    up = torch.zeros(PATCHES, WIDTH)
    up[:, 0] = 50.0  # clipped
    return (up, torch.eye(CLASSES)[0]), (-up, torch.eye(CLASSES)[1])
