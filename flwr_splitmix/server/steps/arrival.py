"""Sequential updates in the order in which the mixing groups' uploads arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from flwr_splitmix.events import StepResult
from flwr_splitmix.mixers import EmptyMixtureError, Mixed, Plan, Source, Upload
from flwr_splitmix.mixers.checked_mixer import Gradients
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.server.steps.position import StepPosition
from flwr_splitmix.server.steps.training import SplitTraining


class GroupsOnArrival:
    """One step's groups, each processed as soon as it is complete.

    Parameters
    ----------
    training
        The parts and settings of the run's steps.
    position
        The step's; each group derives a seed of its own for dropout and the like.
    plan
        A plan with one pass.

    Attributes
    ----------
    uploads, gradients
        By client index, the uploads that arrived and the gradients to return.
    """

    def __init__(self, training: SplitTraining, position: StepPosition, plan: Plan) -> None:
        self.training = training
        self.position = position
        self.plan = plan
        self.uploads: dict[int, Upload] = {}
        self.gradients: Gradients = {}
        groups = plan.passes[0]
        self._missing = {i: {m.client for m in group.members} for i, group in enumerate(groups)}
        self._group_of = {m.client: i for i, group in enumerate(groups) for m in group.members}
        self._parts: list[tuple[Mixed, StepResult]] = []

    def learn(
        self, uploads: Iterable[tuple[int, Upload]], deliver: Callable[[Gradients], None]
    ) -> Gradients:
        """Learn from groups as their uploads arrive, and at the end from incomplete groups.

        Parameters
        ----------
        deliver
            Called with a group's gradients while other groups still upload.

        Returns
        -------
        The gradients left to deliver, when no further upload is awaited.
        """
        owed: Gradients = {}
        for client, upload in uploads:
            self.uploads[client] = upload
            group = self._group_of[client]
            self._missing[group].discard(client)
            if not self._missing[group]:
                owed = self._learn(group)
                if self._missing:
                    deliver(owed)
                    owed = {}
        for group in list(self._missing):
            owed |= self._learn(group)
        return owed

    def result(self) -> tuple[Mixed, StepResult]:
        """Return all mixtures of the step as one, in the order of their updates.

        Raises
        ------
        EmptyMixtureError
            If there was no mixture.
        """
        if not self._parts:
            raise EmptyMixtureError("there is nothing to mix: no group of the plan has come")
        mixed = [part for part, _ in self._parts]
        sources: tuple[Source, ...] = sum((part.sources for part in mixed), ())
        whole = Mixed(
            torch.cat([part.smashed for part in mixed]),
            torch.cat([part.targets for part in mixed]),
            sources,
        )
        losses = torch.stack([result.loss for _, result in self._parts])
        gradient = torch.cat([result.gradient for _, result in self._parts])
        return whole, StepResult(losses.mean(), gradient)

    def _learn(self, group: int) -> Gradients:
        del self._missing[group]
        group_plan = self.plan.only(group)
        uploads = {c: self.uploads[c] for c in group_plan.clients if c in self.uploads}
        training = self.training
        try:
            mixed = training.merge(uploads, group_plan)
        except EmptyMixtureError:  # no member of this group has sent a patch
            return {}
        result = training.upper.learn(
            mixed,
            self.position.progress,
            training.num_rounds,
            derive_seed(training.upper_seed(self.position), "group", group),
            np.random.default_rng(0),  # draws the order of several groups; there is one
        )
        self._parts.append((mixed, result))
        gradients = training.split(result, mixed, group_plan)
        self.gradients |= gradients
        return gradients
