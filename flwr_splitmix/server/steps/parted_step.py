"""The parts of a step joined into one step, for observers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from flwr_splitmix.events import StepDone, StepResult
from flwr_splitmix.mixers import EmptyMixtureError, Mixed, Plan, Source, Upload
from flwr_splitmix.mixers.checked_mixer import Gradients

T = TypeVar("T")


class PartedStep:
    """A step whose batch arrived in parts.

    Parameters
    ----------
    plan
        Plan of the whole batch.
    parts
        The number of parts.

    Attributes
    ----------
    groups
        The number of groups trained on, averaged over the samples of the batch.
    """

    def __init__(self, plan: Plan, parts: int) -> None:
        self.plan = plan
        self.parts = parts
        self.groups = 0.0
        self._group_of_client = [
            {
                member.client: group
                for group, planned_group in enumerate(groups)
                for member in planned_group.members
            }
            for groups in plan.passes
        ]
        self._came: list[tuple[Mapping[int, Upload], Gradients]] = []
        self._learned: list[tuple[int, Mixed, StepResult]] = []

    def add(
        self,
        uploads: Mapping[int, Upload],
        gradients: Gradients,
        mixed: Mixed | None,
        result: StepResult | None,
    ) -> None:
        """Add the next part; `mixed` and `result` are None if there was nothing to mix."""
        if mixed is not None and result is not None:
            self.groups += len(mixed.sources) / self.parts
            self._learned.append((len(self._came), mixed, result))
        self._came.append((uploads, gradients))

    def done(self, server_round: int, number: int) -> StepDone:
        """Return the step as if its batch had arrived whole.

        A client that dropped out midway has no upload, but the parts that arrived from it are in
        the mixture. Samples of the mixture are zero if there was nothing to mix.

        Raises
        ------
        EmptyMixtureError
            If no part had anything to mix.
        """
        if not self._learned:
            raise EmptyMixtureError("there is nothing to mix: no part of the batch has come")
        mixed, result = self._joined()
        uploads = _whole([uploads for uploads, _ in self._came], _join_uploads)
        gradients = _whole([gradients for _, gradients in self._came], _join_passes)
        return StepDone(
            server_round,
            number,
            uploads,
            gradients,
            loss=result.loss,
            plan=self.plan,
            mixed=mixed,
            result=result,
        )

    def _joined(self) -> tuple[Mixed, StepResult]:
        sources: dict[tuple[int, int], Source] = {}
        came: dict[tuple[int, int], list[frozenset[int]]] = {}
        for part, mixed, _ in self._learned:
            for source in mixed.sources:
                index, group = place = self._group_of(source)
                clients = frozenset(member.client for member in source.members)
                members = self.plan.passes[index][group].members
                senders = tuple(member for member in members if member.client in clients)
                sources.setdefault(place, Source(index, senders, source.ratio))
                came.setdefault(place, [frozenset()] * self.parts)[part] = clients
        rows = {place: row for row, place in enumerate(sources)}

        def joined(of_part: Sequence[Tensor]) -> Tensor:
            samples = self.plan.shape.batch // self.parts
            size = of_part[0].shape[1:]
            whole = of_part[0].new_zeros((len(rows), self.parts, samples, *size))
            for (part, mixed, _), numbers in zip(self._learned, of_part, strict=True):
                row_indices = [rows[self._group_of(source)] for source in mixed.sources]
                whole[row_indices, part] = numbers.view(len(row_indices), samples, *size)
            return whole.flatten(0, 2)

        smashed = joined([mixed.smashed for _, mixed, _ in self._learned])
        targets = joined([mixed.targets for _, mixed, _ in self._learned])
        gradient = joined([result.gradient for _, _, result in self._learned])
        loss = torch.stack([result.loss for _, _, result in self._learned]).sum()
        if any(len(set(parts)) > 1 for parts in came.values()):
            sources = {p: replace(source, parts=tuple(came[p])) for p, source in sources.items()}
        return Mixed(smashed, targets, tuple(sources.values())), StepResult(loss, gradient)

    def _group_of(self, source: Source) -> tuple[int, int]:
        """Return the position of a source's group in the plan: (pass, group)."""
        return source.index, self._group_of_client[source.index][source.members[0].client]


def _whole(parts: Sequence[Mapping[int, T]], join: Callable[[Sequence[T]], T]) -> dict[int, T]:
    """Join each client's values over all parts; clients that lack a part are left out."""
    return {
        client: join([part[client] for part in parts])
        for client in sorted(parts[0])
        if all(client in part for part in parts)
    }


def _join_uploads(parts: Sequence[Upload]) -> Upload:
    smashed = _join_passes([part.smashed for part in parts])
    labels = [part.labels for part in parts]
    if all(isinstance(part_labels, Tensor) for part_labels in labels):
        return Upload(
            smashed,
            torch.cat([part_labels for part_labels in labels if isinstance(part_labels, Tensor)]),
        )
    return Upload(
        smashed,
        _join_passes(
            [part_labels for part_labels in labels if not isinstance(part_labels, Tensor)]
        ),
    )


def _join_passes(parts: Sequence[Sequence[Tensor | None]]) -> list[Tensor | None]:
    """Join the tensors of each pass; None if a part has no tensor in it."""
    return [
        torch.cat([tensor for tensor in passes if tensor is not None])
        if all(tensor is not None for tensor in passes)
        else None
        for passes in zip(*parts, strict=True)
    ]
