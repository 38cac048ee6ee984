"""The base class of mixers: draws a plan, merges uploads, splits gradients."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.labels import loss_dtype
from flwr_splitmix.mixers.checked_share import picked, place_upload
from flwr_splitmix.mixers.facts import MixerFacts
from flwr_splitmix.mixers.mixture import Mixed, Source, Upload
from flwr_splitmix.mixers.plan import Group, Plan, SmashedShape
from flwr_splitmix.words import counted

MIN_RATIO = 1e-6
"""Least sum of a group's arrived ratios: dividing by less gives noise or NaN."""


class EmptyMixtureError(ValueError):
    """No patch of a plan arrived, so there is nothing to learn from."""


class Mixer(MixerFacts, ABC):
    """Decides what happens to smashed data between the clients and the upper segment.

    A new mixer overrides `plan`; one whose clients upload something new also brings a `Share`.

    Its attributes are those of `MixerFacts`.
    """

    def __str__(self) -> str:
        return type(self).__name__

    def check_clients(self, n: int) -> None:
        """Raise ValueError if this mixer cannot work with `n` clients in a round."""
        if n < self.min_members:
            raise ValueError(
                f"{type(self).__name__} needs at least {self.min_members} clients in a round, "
                f"got {n}"
            )

    def without_effect(self, patches: int) -> str:
        """Return what it cannot do with samples of so few patches; "" if it has its full effect.

        A warning quotes it, in the third person: "mixes nothing: ...".
        """
        return ""

    def group_within(self, classes: Mapping[int, int]) -> None:
        """From now on, group clients of the same class where possible.

        Mixers without groups of clients do nothing.

        Parameters
        ----------
        classes
            Class by client index, 0 if missing. Empty: any clients may be grouped.
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
            Indices of the clients that take part, sorted.
        rng
            Generator for this step.
        order_rng
            Generator for draws made once an epoch if `regroup` is "epoch"; None uses `rng`.
        """

    def merge(
        self,
        uploads: Mapping[int, Upload],
        plan: Plan,
        *,
        num_classes: int,
        device: torch.device | None = None,
    ) -> Mixed:
        """Mix the uploads that arrived.

        A missing member leaves zeros at its patches. The target and weighted sums of smashed data
        are divided by the sum of the ratios that arrived, each of them unless it holds noise, which
        that would amplify. A group without any arrived patch is left out.

        Parameters
        ----------
        uploads
            By client index; clients of the plan may be missing.
        num_classes
            Number L of classes.
        device
            Device of the mixture; None uses that of the uploads.

        Raises
        ------
        EmptyMixtureError
            If no patch arrived at all.
        ValueError
            If a group of the plan makes no mixture.
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
        targets = torch.zeros(
            (len(mixed), num_classes), dtype=loss_dtype(first.dtype), device=mixed.device
        )
        for row, source in enumerate(sources):
            rows = slice(row * batch, (row + 1) * batch)
            for member in source.members:
                upload = uploads[member.client]
                smashed = upload.smashed[source.index]
                assert smashed is not None, "an upload that passed the check has every pass"
                place_upload(member.share, mixed[rows], smashed.to(mixed.device))
                targets[rows] += upload.targets(
                    source.index, member.share.lam, num_classes, targets
                )
            if source.labels_divisor != 1:
                targets[rows] /= source.labels_divisor
            if source.divisor != 1:
                self.renormalise(mixed[rows], source.divisor, plan.shape)
        return Mixed(mixed, targets, tuple(sources))

    def _sources(self, uploads: Mapping[int, Upload], plan: Plan) -> list[Source]:
        sources = []
        for index, groups in enumerate(plan.passes):
            for group in groups:
                self._check_group(group)
                came = tuple(m for m in group.members if m.client in uploads)
                if len(came) == len(group.members):
                    sources.append(Source(index, came, 1.0))
                elif (ratio := sum(m.share.lam for m in came)) >= MIN_RATIO:
                    sources.append(Source(index, came, ratio))
        return sources

    def _check_group(self, group: Group) -> None:
        """Raise ValueError if ratios do not sum to 1, or a share overwrites the others'."""
        ratios = [member.share.lam for member in group.members]
        if not math.isclose(sum(ratios), 1.0, abs_tol=MIN_RATIO):
            raise ValueError(
                f"the ratios (lam) of a group of {self} are {', '.join(f'{r:g}' for r in ratios)}; "
                "they must sum to 1, as its labels are weighted by them"
            )
        for share in (member.share for member in group.members if len(group.members) > 1):
            if share.overwrites:
                raise ValueError(
                    f"share {share.name!r} fills the whole mixture, but {self} has put it in a "
                    f"group of {counted(len(group.members), 'client')}: it must be alone there; "
                    "use WeightedShare for weighted sums"
                )

    def renormalise(self, mixed: Tensor, ratio: float, shape: SmashedShape) -> None:
        """Compensate for missing members, in place: divide weighted sums by `ratio`.

        Prefix tokens are such sums; patches are if `cover` is "weighted".
        """
        sums = mixed if self.cover == "weighted" else mixed[:, : shape.prefix]
        sums /= ratio

    def split(self, gradient: Tensor, mixed: Mixed, plan: Plan) -> dict[int, list[Tensor | None]]:
        """Return each client's cut-layer gradient of its own share.

        Parameters
        ----------
        gradient
            Gradient of each group's loss with respect to `mixed.smashed`, same shape.

        Returns
        -------
        By client index, one tensor per pass: the gradient of the upload (or, for broadcast, of the
        whole mixture); None if the pass returns no gradient.
        """
        batch = plan.shape.batch
        result: dict[int, list[Tensor | None]] = {}
        for row, source in enumerate(mixed.sources):
            part = gradient[row * batch : (row + 1) * batch]
            if source.divisor != 1:
                part = part.clone()
                self.renormalise(part, source.divisor, plan.shape)
            for member in source.members:
                client_gradients = result.setdefault(member.client, [None] * len(plan.passes))
                if member.share.learns:
                    client_gradients[source.index] = picked(member.share, part)
        return result
