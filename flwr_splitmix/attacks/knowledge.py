"""What an adversary knows of method and model, without having received anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.release import Adversary, Simulated
from flwr_splitmix.mixers import Mixer
from flwr_splitmix.segments.geometry import Geometry

Lowers = nn.Module | Mapping[int, nn.Module]
"""One lower segment for all clients, or each client's by its index."""


@dataclass(frozen=True)
class Knowledge:
    """What is public by assumption: the method, its options, the model's architecture.

    Parameters
    ----------
    method, options
        Name of the strategy, and the options that it was made with.
    mixer
        The strategy's mixer: it draws nothing by itself and keeps nothing of a run.
    image_shape
        (C, H, W) of an image.
    num_classes
        Number L of classes.
    geometry
        Of the smashed data: grid, prefix tokens, width.
    k
        Clients in a mixing group; 1 where nothing is mixed.
    batch_size
        Examples of a client's batch.
    mean, std
        By channel, of the normalisation of pixels before the lower segment.
    fresh_lower
        Makes a lower segment of the same architecture with fresh weights from a seed. Lower
        segments take normalised images: see `normalise`.
    lowers
        The trained lower segment, where the adversary has it: one where all are averaged, else by
        client; None where it has none.
    averaged
        Whether it has `lowers` because the server averages them, and not by assumption.
    upper
        The trained upper segment; None where the adversary has none.
    """

    method: str
    options: Mapping[str, Any]
    mixer: Mixer
    image_shape: tuple[int, int, int]
    num_classes: int
    geometry: Geometry
    k: int
    batch_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fresh_lower: Callable[[int], nn.Module]
    lowers: Lowers | None = field(default=None, repr=False)
    averaged: bool = False
    upper: nn.Module | None = field(default=None, repr=False)

    def normalise(self, images: Tensor) -> Tensor:
        """Return images (b, C, H, W), 0 to 1, as lower segments take them."""
        mean, std = self._moments(images)
        return (images - mean) / std

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Return what a lower segment takes as images; they may leave 0 to 1."""
        mean, std = self._moments(inputs)
        return inputs * std + mean

    def _moments(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (
            torch.tensor(v, dtype=like.dtype, device=like.device) for v in (self.mean, self.std)
        )
        return mean.view(-1, 1, 1), std.view(-1, 1, 1)

    def lower_of(self, client: int | None) -> nn.Module | None:
        """Return the trained lower segment of a client, where the adversary has it."""
        if isinstance(self.lowers, Mapping):
            return None if client is None else self.lowers.get(client)
        return self.lowers

    def simulate(
        self,
        images: Tensor,
        labels: Tensor,
        generator: np.random.Generator,
        *,
        lower: Lowers | None = None,
        adversary: Adversary = "server",
        batch_size: int | None = None,
        gradients: bool = False,
    ) -> list[Simulated]:
        """Run the method on an attacker's own images, as the system would.

        Masks, partners, ratios and noise are drawn afresh from the generator, for every call. All
        images are used once (some twice, to fill the last step); shuffle, mixing and noise are
        those of training. No graph is kept.

        Parameters
        ----------
        images, labels
            float (n, C, H, W), 0 to 1, and int64 (n,): n >= 1.
        generator
            Of all draws.
        lower
            What makes the smashed data; None is what the adversary has, or else fresh segments.
            Of several segments each client of the simulation has one, by the generator's choice.
        adversary
            Whose releases are returned.
        batch_size
            Images of a client in a step; None is the victims' own.
        gradients
            Whether the upper segment, which the adversary must have, says gradients and losses of
            each row. It costs its forward and backward pass.

        Returns
        -------
        The releases in the order of their steps, each with the origin of its rows.
        """
        from flwr_splitmix.attacks.simulation import simulate

        return simulate(
            self,
            images,
            labels,
            generator,
            lowers=self.lowers if lower is None else lower,
            adversary=adversary,
            batch_size=batch_size or self.batch_size,
            gradients=gradients or adversary == "member of the group",
        )
