"""An adversary's knowledge of method and model before it receives anything."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.images.embedding.patches import grid_of
from flwr_splitmix.attacks.release import Adversary, Simulated
from flwr_splitmix.labels import TargetLoss, loss_on
from flwr_splitmix.mixers import Mixer, SmashedShape
from flwr_splitmix.mixers.wrapper import all_inside
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.segments.geometry import Geometry

if TYPE_CHECKING:
    from flwr_splitmix.data import ImageDataset
    from flwr_splitmix.strategies import SplitStrategy

Lowers = nn.Module | Mapping[int, nn.Module]
"""One lower segment for all clients, or one per client, by client index."""


@dataclass(frozen=True)
class Knowledge:
    """Public knowledge by assumption: the method, its options, the model's architecture.

    Parameters
    ----------
    method, options
        Name of the strategy, and the options it was created with.
    mixer
        The strategy's mixer: it has no random state of its own and keeps nothing of a run.
    image_shape
        (C, H, W) of an image.
    num_classes
        Number L of classes.
    geometry
        Geometry of the smashed data: grid, prefix tokens, width.
    k
        Clients per mixing group; 1 if nothing is mixed.
    batch_size
        Examples in a client's batch.
    mean, std
        By channel, for the normalisation of pixels before the lower segment.
    fresh_lower
        Makes a lower segment of the same architecture with fresh weights from a seed. Lower
        segments take normalised images: see `normalise`.
    lowers
        The trained lower segments that the adversary has: a single one if they are averaged,
        otherwise by client; None if it has none.
    first
        The lower segment that all clients began with; None if it is not known.
    untrained
        Whether `lowers` is `first`, as of a server, which has sent it and has no trained one.
    averaged
        Whether it has `lowers` because the server averages them, rather than by assumption.
    multi_label
        Whether an image may have several of the classes.
    loss
        Loss of the training; None for the default, see `target_loss`.
    upper
        The trained upper segment, which is put into evaluation mode; None if the adversary does not
        have it.
    mixes_batch
        Whether lower segments mix the images of a batch, as clients of NaiveMixSL do: then only a
        whole release can be compared with what they make of images.
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
    first: nn.Module | None = field(default=None, repr=False)
    untrained: bool = False
    averaged: bool = False
    multi_label: bool = False
    loss: TargetLoss | None = field(default=None, repr=False)
    upper: nn.Module | None = field(default=None, repr=False)
    mixes_batch: bool = False

    @classmethod
    def of(
        cls,
        strategy: SplitStrategy,
        images: ImageDataset,
        geometry: Geometry,
        *,
        clients: int,
        batch_size: int,
        fresh_lower: Callable[[int], nn.Module],
        lowers: Lowers,
        first: nn.Module | None,
        method: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Knowledge:
        """Return the knowledge of all adversaries together about a strategy that has trained.

        The strategy provides a part of it: mixer, classes, loss, upper segment (a copy, on the
        CPU), and whether lower segments are averaged.

        Parameters
        ----------
        images
            A client's images, which show how pixels are normalised.
        clients
            Number of clients that mixing groups are formed of.
        lowers, first
            The trained lower segments, and the one that the server has sent for all to begin
            with; None if it has sent none.
        method, options
            The method's name, by default the class's, and its options, for labels in results.
        """
        upper = strategy.upper
        return cls(
            method=method or type(strategy).__name__,
            options=dict(options or {}),
            mixer=strategy.mixer,
            image_shape=images.shape,
            num_classes=upper.num_classes,
            geometry=geometry,
            k=group_size(strategy.mixer, geometry, clients),
            batch_size=batch_size,
            mean=images.mean,
            std=images.std,
            fresh_lower=fresh_lower,
            lowers=lowers,
            first=first,
            averaged=strategy.aggregator.averages,
            multi_label=upper.multi_label,
            loss=loss_on(copy.deepcopy(upper.loss), "cpu"),
            upper=copy.deepcopy(upper.module).cpu(),
        )

    @property
    def patch_grid(self) -> tuple[int, int]:
        """Rows and columns of the patches; ValueError if they form no square and none are known."""
        return grid_of(self.geometry.patches, self.geometry.grid)

    def __post_init__(self) -> None:
        if self.upper is not None:
            self.upper.eval()

    def normalise(self, images: Tensor) -> Tensor:
        """Return images (b, C, H, W), 0 to 1, as lower segments take them."""
        mean, std = self._moments(images)
        return (images - mean) / std

    def denormalise(self, inputs: Tensor) -> Tensor:
        """Return inputs of a lower segment as images; values may lie outside 0 to 1."""
        mean, std = self._moments(inputs)
        return inputs * std + mean

    def _moments(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (
            torch.tensor(v, dtype=like.dtype, device=like.device) for v in (self.mean, self.std)
        )
        return mean.view(-1, 1, 1), std.view(-1, 1, 1)

    def lower_of(self, client: int | None) -> nn.Module | None:
        """Return a client's trained lower segment; None if the adversary does not have it."""
        if isinstance(self.lowers, Mapping):
            return None if client is None else self.lowers.get(client)
        return self.lowers

    def own_lower(self, seed: int) -> nn.Module:
        """Return a lower segment with an attacker's own fresh weights.

        They are not those that the victims' segments began with, even if the victims have the
        same seed.
        """
        return self.fresh_lower(derive_seed(seed, "an attacker's lower segment") % 2**31)

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

        Masks, partners, ratios and noise are drawn from the generator, afresh for every call. All
        images are used once (some twice, to fill the last step); shuffle, mixing and noise are
        as in training. No graph is kept.

        Parameters
        ----------
        images, labels
            float (n, C, H, W), 0 to 1, and int64 (n,): n >= 1.
        generator
            For all draws.
        lower
            Lower segments to use; None uses what the adversary has, or else fresh ones. If there
            are several, each simulated client gets one, chosen by the generator.
        adversary
            The adversary whose releases are returned.
        batch_size
            Images per client and step; None uses the victims' batch size.
        gradients
            Whether to compute gradients and losses of each row with the upper segment, which the
            adversary must have. This costs a forward and a backward pass.

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


def group_size(mixer: Mixer, geometry: Geometry, clients: int) -> int:
    """Return k: the mixer's own, or else the most clients in a group of a trial plan."""
    *_, inner = all_inside(mixer)
    if inner.k:
        return inner.k
    inner.check_clients(clients)
    shape = SmashedShape(
        1, geometry.patches, geometry.width, geometry.prefix, geometry.grid, classes=2
    )
    plan = inner.plan(range(clients), shape, np.random.default_rng(0), np.random.default_rng(0))
    return max((len(group.members) for group in plan.groups), default=1)
