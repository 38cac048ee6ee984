"""Each adversary's part of a recorded step, and, for the score only, what it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flwr_splitmix.attacks.placing import (
    mask_of,
    owners_of,
    placed,
    placed_gradient,
    undone,
)
from flwr_splitmix.attacks.recording.steps import Batches, Orders, Step
from flwr_splitmix.attacks.release import Adversary, Origin, Release
from flwr_splitmix.mixers import Group, InputShare, Member, Mixed, Mixer, Share
from flwr_splitmix.mixers.noisy import without_noise
from flwr_splitmix.mixers.shuffled import ShuffledMixed, rearranged
from flwr_splitmix.seeding import frozen_generator


class StepReader:
    """Returns what one adversary received in a step.

    Parameters
    ----------
    mixer
        The strategy's mixer.
    num_classes
        Number L of classes.
    adversary
        The adversary.
    member
        Which client the "member of the group" is.
    """

    def __init__(
        self, mixer: Mixer, num_classes: int, adversary: Adversary, member: int = 0
    ) -> None:
        self.mixer = mixer
        self.num_classes = num_classes
        self.adversary = adversary
        self.member = member

    def releases(self, step: Step, own_labels: Tensor | None = None) -> list[Release]:
        """Return the adversary's releases of a step.

        Parameters
        ----------
        own_labels
            Labels of the member's own examples in the step; see `Release.own_labels`.
        """
        if self.adversary in ("server", "eavesdropper"):
            return _of_clients(step, self._mixed(step), self.mixer, self.adversary == "server")
        if self.adversary == "member of the group":
            return _of_member(step, self._mixed(step), self.mixer, self.member, own_labels)
        return _of_mixtures(step, self._mixed(step), self.adversary == "upper only")

    def origins(self, step: Step, batches: Batches, orders: Orders | None = None) -> list[Origin]:
        """Return the origin of the rows of each of `releases`, for the score only."""
        orders = orders or {}
        if self.adversary in ("server", "eavesdropper"):
            return [
                _client_origin(client, share, batches, orders) for client, _, share in _parts(step)
            ]
        if self.adversary == "member of the group":
            return [
                _sources([m.client for m in group.members if m.client != self.member], batches)
                for _, group, _ in _groups_of(step, self.member)
            ]
        return [
            _mixture_origin(step, mixed_row, batches, orders, self.adversary == "upper only")
            for mixed_row in _rows(step, self._mixed(step))
        ]

    def _mixed(self, step: Step) -> Mixed:
        return self.mixer.merge(step.uploads, step.plan, num_classes=self.num_classes)


@dataclass(frozen=True)
class _Row:
    """One group's part of a mixture."""

    number: int
    here: slice
    mixed: Mixed
    members: tuple[Member, ...]


def _rows(step: Step, mixed: Mixed) -> list[_Row]:
    batch = step.plan.shape.batch
    return [
        _Row(i, slice(i * batch, (i + 1) * batch), mixed, source.members)
        for i, source in enumerate(mixed.sources)
    ]


def _parts(step: Step) -> list[tuple[int, int, Share]]:
    """Return (client, pass, share) of every upload of a step, sorted."""
    return [
        (client, index, share)
        for client in sorted(step.uploads)
        for index, share in enumerate(step.plan.shares(client))
        if share is not None
    ]


def _groups_of(step: Step, client: int) -> list[tuple[int, Group, Share]]:
    """Return (pass, group, own share) for every group that mixes a client with others."""
    return [
        (index, group, member.share)
        for index, groups in enumerate(step.plan.passes)
        for group in groups
        for member in group.members
        if member.client == client and len(group.members) > 1 and client in step.uploads
    ]


def _of_clients(step: Step, mixed: Mixed, mixer: Mixer, server: bool) -> list[Release]:
    gradients = {} if step.gradient is None else mixer.split(step.gradient, mixed, step.plan)
    shape = step.plan.shape
    releases = []
    for number, (client, index, share) in enumerate(_parts(step)):
        upload = step.uploads[client]
        smashed = upload.smashed[index]
        assert smashed is not None, "an upload that passed the check has every pass"
        labels = upload.labels if isinstance(upload.labels, Tensor) else upload.labels[index]
        if share.label_kind == "ids" and not server:
            labels = None  # only ids crossed the link; the server has the labels
        returned = gradients.get(client)
        gradient = None if returned is None else returned[index]
        whole = placed(share, smashed, shape)
        taken_back, mask_taken_back = undone(without_noise(share), whole)
        releases.append(
            Release(
                step.server_round,
                step.number,
                client,
                whole,
                mask=mask_of(share, shape),
                lam=share.lam,
                labels=labels,
                ids=step.ids.get(client) if share.label_kind == "ids" else None,
                gradient=placed_gradient(share, gradient, shape),
                loss=_loss_of(step, mixed, client, index) if server else None,
                number=number,
                undone=taken_back,
                undone_mask=mask_taken_back,
            )
        )
    return releases


def _of_member(
    step: Step, mixed: Mixed, mixer: Mixer, member: int, own_labels: Tensor | None
) -> list[Release]:
    if step.gradient is None:
        return []
    gradients = mixer.split(step.gradient, mixed, step.plan).get(member, [])
    shape = step.plan.shape
    releases = []
    for number, (index, _, share) in enumerate(_groups_of(step, member)):
        mask = mask_of(share, shape)
        releases.append(
            Release(
                step.server_round,
                step.number,
                None,
                torch.zeros(shape.size),
                mask=mask,
                owners=torch.where(mask, member, -1),
                lam=share.lam,
                gradient=placed_gradient(share, gradients[index] if gradients else None, shape),
                number=number,
                own_labels=own_labels,
            )
        )
    return releases


def _of_mixtures(step: Step, mixed: Mixed, upper_only: bool) -> list[Release]:
    smashed, gradient = mixed.smashed, step.gradient
    if not upper_only and isinstance(mixed, ShuffledMixed):
        # The sum exists before the mixer shuffles it.
        back, prefix = mixed.order.argsort(dim=1), step.plan.shape.prefix
        smashed = rearranged(smashed, back, prefix)
        gradient = None if gradient is None else rearranged(gradient, back, prefix)
    releases = []
    for row in _rows(step, mixed):
        owners = owners_of(row.members, step.plan.shape)
        alone = len(row.members) == 1 and not upper_only
        rows = smashed[row.here].float()
        releases.append(
            Release(
                step.server_round,
                step.number,
                row.members[0].client if alone else None,
                rows,
                mask=None if upper_only else rows[:, step.plan.shape.prefix :].any(-1),
                owners=None if upper_only else owners,
                lam=row.members[0].share.lam if alone else None,
                labels=mixed.targets[row.here],
                gradient=None if gradient is None else gradient[row.here].float(),
                loss=_rows_loss(step, row.here),
                number=row.number,
            )
        )
    return releases


def _rows_loss(step: Step, rows: slice) -> Tensor | None:
    if step.loss is None or step.loss.ndim == 0:
        return step.loss
    return step.loss[rows]


def _loss_of(step: Step, mixed: Mixed, client: int, index: int) -> Tensor | None:
    for row, source in zip(_rows(step, mixed), mixed.sources, strict=True):
        if source.index == index and any(m.client == client for m in row.members):
            return _rows_loss(step, row.here)
    return None


def _sources(clients: Sequence[int], batches: Batches) -> Origin:
    batch = next(iter(batches.values()))
    unknown = torch.full_like(batch, -1)
    columns = [batches.get(client, unknown) for client in clients]
    return Origin(torch.stack(columns, dim=1), tuple(clients))


def _client_origin(client: int, share: Share, batches: Batches, orders: Orders) -> Origin:
    if not isinstance(share, InputShare):
        origin = _sources([client], batches)
        return Origin(origin.sources, origin.members, orders.get(client))
    # As in `InputShare.mix`: a client's first part in order, further parts shuffled.
    rng, used, columns = frozen_generator(share.seed), set(), []
    for part, _ in share.parts:
        rows = _sources([part], batches).sources[:, 0]
        again = part in used
        columns.append(rows[torch.from_numpy(rng.permutation(len(rows)))] if again else rows)
        used.add(part)
    return Origin(torch.stack(columns, dim=1), tuple(part for part, _ in share.parts))


def _mixture_origin(
    step: Step, row: _Row, batches: Batches, orders: Orders, upper_only: bool
) -> Origin:
    first = row.members[0]
    if len(row.members) == 1:
        origin = _client_origin(first.client, first.share, batches, orders)
    else:
        origin = _sources([m.client for m in row.members], batches)
    owners, order = owners_of(row.members, step.plan.shape), origin.order
    if isinstance(first.share, InputShare):
        owners = None  # inputs were mixed before there were patches
    if upper_only and isinstance(row.mixed, ShuffledMixed):
        order = row.mixed.order[row.here]
        owners = None if owners is None else owners.gather(1, order)
    return Origin(origin.sources, origin.members, order, owners)
