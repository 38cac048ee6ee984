"""The base class of mixers: drawing a plan, merging uploads, splitting gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.mixers.mixture import Mixed, Source, Upload
from flwr_splitmix.mixers.plan import Plan, SmashedShape
from flwr_splitmix.mixers.share import Share

Cover = Literal["partition", "weighted", "partial"]

LEAST_RATIO = 1e-6
"""Least sum of the ratios that arrived of a group: dividing by less gives noise or NaN."""


class EmptyMixtureError(ValueError):
    """No patch of a plan arrived, so there is nothing to learn from."""


class Mixer(ABC):
    """Decides what happens to smashed data between the clients and the upper segment.

    A new mixer overrides `plan`; one whose clients upload something new also brings a `Share`.

    Attributes
    ----------
    shares
        The kinds of shares that its plans contain besides those of this package, which every client
        knows; clients must be given them.
    cover
        What the shares of a group do to a patch: "partition", exactly one member keeps it as it
        is; "weighted", all members contribute, by their mixing ratios; "partial", at most one
        keeps it, and it may be nobody's.
    positions
        Where the patches' position embeddings must be added: in either segment (None), or in the
        upper one ("upper"), because the patches are moved in between.
    raw_inputs_cross
        Whether clients see each other's raw inputs: for comparison within one process only.
    takes_noise
        Whether `Noisy` may add noise to what clients send.
    min_members
        The fewest clients with which it does what it promises.
    regroup
        Whether clients are put into new groups every "step" or every "epoch".
    needs_whole_batch
        Whether it cannot mix a part of the clients' batches as it mixes the whole ones.
    """

    shares: ClassVar[tuple[type[Share], ...]] = ()
    cover: Cover = "partition"
    positions: Literal["upper"] | None = None
    raw_inputs_cross: bool = False
    takes_noise: bool = True
    min_members: int = 1
    regroup: Literal["step", "epoch"] = "step"
    needs_whole_batch: bool = False

    def __str__(self) -> str:
        return type(self).__name__

    def check_clients(self, n: int) -> None:
        """Raise ValueError if this mixer cannot work with `n` clients in a round."""
        if n < self.min_members:
            raise ValueError(
                f"{type(self).__name__} needs at least {self.min_members} clients in a round, "
                f"here are {n}"
            )

    def group_within(self, classes: Mapping[int, int]) -> None:  # noqa: B027  # most have no groups
        """Group clients of one class with each other from now on, as far as possible.

        Mixers without groups of clients have nothing to do.

        Parameters
        ----------
        classes
            By client index; clients without one are of class 0. Empty: anyone with anyone.
        """

    @abstractmethod
    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Draw a step's groups, mixing ratios and masks.

        Parameters
        ----------
        members
            Client indices that take part, sorted.
        rng
            Generator of this step.
        order_rng
            Generator of what is drawn once an epoch when `regroup` is "epoch"; None uses `rng`.
        """

    def merge(
        self,
        uploads: Mapping[int, Upload],
        plan: Plan,
        *,
        num_classes: int,
        device: torch.device | None = None,
    ) -> Mixed:
        """Mix the uploads that came.

        A member that is missing leaves zeros at its patches, and the target is divided by the sum
        of the ratios that came. A group of which no patch came is left out.

        Parameters
        ----------
        uploads
            By client index; may lack clients of the plan.
        num_classes
            Number L of classes.
        device
            Where the mixture is made; None is where the uploads are.

        Raises
        ------
        EmptyMixtureError
            If no patch came at all.
        """
        sources = self._sources(uploads, plan)
        if not sources:
            raise EmptyMixtureError(
                "there is nothing to mix: no client of the plan uploaded any patch"
            )
        first = next(s for upload in uploads.values() for s in upload.smashed if s is not None)
        batch, tokens, width = plan.shape.size
        mixed = torch.zeros(
            (len(sources) * batch, tokens, width), dtype=first.dtype, device=device or first.device
        )
        targets = torch.zeros((len(mixed), num_classes), dtype=first.dtype, device=mixed.device)
        for row, source in enumerate(sources):
            here = slice(row * batch, (row + 1) * batch)
            for member in source.members:
                upload = uploads[member.client]
                smashed = upload.smashed[source.index]
                assert smashed is not None, "an upload that passed the check has every pass"
                member.share.place(mixed[here], smashed.to(mixed.device))
                targets[here] += upload.targets(
                    source.index, member.share.lam, num_classes, targets
                )
            if source.ratio != 1:
                targets[here] /= source.ratio
                self.renormalise(mixed[here], source.ratio, plan.shape)
        return Mixed(mixed, targets, tuple(sources))

    def _sources(self, uploads: Mapping[int, Upload], plan: Plan) -> list[Source]:
        sources = []
        for index, groups in enumerate(plan.passes):
            for group in groups:
                came = tuple(m for m in group.members if m.client in uploads)
                if len(came) == len(group.members):
                    sources.append(Source(index, came, 1.0))
                elif (ratio := sum(m.share.lam for m in came)) >= LEAST_RATIO:
                    sources.append(Source(index, came, ratio))
        return sources

    def renormalise(self, mixed: Tensor, ratio: float, shape: SmashedShape) -> None:
        """Make up for members that are missing, in place: weighted sums are divided by `ratio`.

        Patches are not weighted, prefix tokens are.
        """
        if shape.prefix and ratio != 1:
            mixed[:, : shape.prefix] /= ratio

    def split(self, gradient: Tensor, mixed: Mixed, plan: Plan) -> dict[int, list[Tensor | None]]:
        """Give each client the cut-layer gradient of its own share.

        Parameters
        ----------
        gradient
            Gradient of each group's loss with respect to `mixed.smashed`, same shape.

        Returns
        -------
        By client index, one tensor for each pass: the gradient of the upload (or, for broadcast,
        of the whole mixture), None where the pass returns none.
        """
        batch = plan.shape.batch
        result: dict[int, list[Tensor | None]] = {}
        for row, source in enumerate(mixed.sources):
            part = gradient[row * batch : (row + 1) * batch]
            if source.ratio != 1:
                part = part.clone()
                self.renormalise(part, source.ratio, plan.shape)
            for member in source.members:
                own = result.setdefault(member.client, [None] * len(plan.passes))
                if member.share.learns:
                    own[source.index] = member.share.pick(part)
        return result
