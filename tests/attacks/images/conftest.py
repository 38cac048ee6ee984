"""A small bench: pooled garments, a patch embedding as lower segment, any mixer, any adversary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Attack, Guess, View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Adversary, Origin, Simulated
from flwr_splitmix.data import ImageDataset, load_images
from flwr_splitmix.mixers import Mixer
from flwr_splitmix.mixers.wrapper import innermost
from flwr_splitmix.segments.geometry import Geometry

GRID, SIDE, WIDTH = (4, 4), 16, 40
PATCHES = GRID[0] * GRID[1]


class Embedding(nn.Module):
    """Patches of 4 x 4 pixels to tokens, with positions or without."""

    def __init__(self, seed: int, positions: bool = True) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.project = nn.Conv2d(1, WIDTH, 4, 4)
            self.place = nn.Parameter(0.3 * positions * torch.randn(PATCHES, WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.project(images).flatten(2).mT
        return tokens + self.place


class Noise(nn.Module):
    """Sends noise whatever the image is."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.randn(len(images), PATCHES, WIDTH) + 0 * images.sum()


@dataclass(frozen=True)
class Bench:
    """Public images, and victims that nobody has seen."""

    public: Pictures
    victims: Pictures

    @property
    def floor(self) -> float:
        """The error of the mean public image."""
        mean = self.public.images.mean(0, keepdim=True)
        return float((mean - self.victims.images).square().mean())

    def view(
        self,
        mixer: Mixer,
        adversary: Adversary = "server",
        lowers: nn.Module | Mapping[int, nn.Module] | None = None,
        *,
        batch_size: int = 8,
        times: int = 1,
        knows_lowers: bool = True,
        width: int = WIDTH,
        prefix: int = 0,
        seed: int = 0,
    ) -> View:
        """Release the victims so often."""
        segments = Embedding(0) if lowers is None else lowers
        knowledge = Knowledge(
            method="a method",
            options={},
            mixer=mixer,
            image_shape=self.public.shape,
            num_classes=10,
            geometry=Geometry(PATCHES, width, prefix, grid=GRID),
            k=innermost(mixer).k or 1,
            batch_size=batch_size,
            mean=(0.3,),
            std=(0.35,),
            fresh_lower=Embedding,
            lowers=segments if knows_lowers else None,
        )
        rng = np.random.default_rng(seed)
        releases: list[Simulated] = []
        for _ in range(times):
            releases += knowledge.simulate(
                self.victims.images, self.victims.labels, rng, lower=segments, adversary=adversary
            )
        return View(adversary, releases, knowledge)

    def attack(
        self, attack: Attack, view: View, budget: Budget | None = None, seed: int = 0
    ) -> Guess:
        """Fit and run an attack."""
        attack.fit(view, self.public, budget or Budget(scale="smoke"), seed=seed)
        return attack.run(view)

    def error(self, guess: Guess, view: View) -> float:
        """Return the mean square error; of several guesses at a row, in the best assignment."""
        rows: dict[tuple[int, int], list[Tensor]] = {}
        for value, where in zip(guess.values, guess.where, strict=True):
            rows.setdefault(where, []).append(value)
        errors = []
        for (place, row), values in rows.items():
            truth = self.victims.images[origin(view, place).sources[row]]
            apart = (torch.stack(values)[:, None] - truth[None]).square().flatten(2).mean(2)
            ways = permutations(range(len(truth)), len(values))
            errors.append(
                apart.mean()
                if len(values) == 1
                else min(apart[range(len(values)), list(way)].mean() for way in ways)
            )
        return float(torch.stack(errors).mean())


def origin(view: View, place: int) -> Origin:
    """Return where the rows of a release come from."""
    release = view.releases[place]
    assert isinstance(release, Simulated)
    assert release.origin is not None
    return release.origin


@pytest.fixture(scope="session")
def bench() -> Bench:
    images = load_images("fashion-mnist-small")

    def pooled(data: ImageDataset, count: int) -> Pictures:
        whole = Pictures.of(data, np.arange(count))
        return Pictures(F.avg_pool2d(whole.images, 2), whole.labels)

    return Bench(pooled(images.train, 512), pooled(images.test, 48))
