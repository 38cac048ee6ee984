"""The steps of a round at the mixer: draw plans, mix uploads, split gradients."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.description import SegmentDescription, SplitDescription
from flwr_splitmix.labels import wrong_labels
from flwr_splitmix.limits import LARGEST
from flwr_splitmix.links import Clients
from flwr_splitmix.links.mixer.service import RefusedError
from flwr_splitmix.mixer_process.ledgers import RoundLedger
from flwr_splitmix.mixer_process.opening import DTYPES, Opening
from flwr_splitmix.mixer_process.rules import MixerRules
from flwr_splitmix.mixers import EmptyMixtureError, Member, Mixed, Mixer, Plan, Upload
from flwr_splitmix.mixers.checked_mixer import gradients_of
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.server.intake.checks import (
    DtypeError,
    UploadError,
    check_magnitude,
    check_tensor,
)
from flwr_splitmix.server.intake.descriptions import agree_on_shape
from flwr_splitmix.server.intake.split import LabelRules, UploadIntake
from flwr_splitmix.server.steps.planner import Planner
from flwr_splitmix.server.steps.round_length import RoundLength
from flwr_splitmix.server.steps.whole_batches import WholeBatches
from flwr_splitmix.values import MAX_COUNT
from flwr_splitmix.words import are, counted

log = logging.getLogger("flwr.splitmix")


class PrivateIntake(UploadIntake):
    """An intake that hides the shapes and ranges of uploads from the server.

    They are those of a client's share, and reveal each client's part of a mixture.
    """

    def leave_out(self, clients: Clients, client: int, error: UploadError) -> None:
        """Leave out a client, and log why."""
        log.warning("client %d is left out: it %s", client, error)
        reason = "uploaded something else than it was asked for; the mixer's log says what"
        clients.fail(client, error.without_shapes if isinstance(error, DtypeError) else reason)


class MixedSteps:
    """Takes steps with the nodes of a round, and passes on only mixtures.

    Plans are drawn as by a strategy without a third party, so the same seed gives the same plans.

    Parameters
    ----------
    seed
        For groups, ratios and masks.
    rules
        The operator's rules.
    opening
        The ServerApp's request.
    mixer, geometry
        Made from `opening`.
    clients
        The nodes that have attached.
    ledger
        Charged for the mixtures that are passed on; None without noise.

    Attributes
    ----------
    sizes
        The mixtures' description for the ServerApp; "num-examples" is the mean over clients.
    gradient_bytes
        Total size of the gradients of a step's mixtures, in bytes.
    mixture_bytes
        Total size of a step's mixtures with their soft labels, in bytes.
    sums
        Whether mixtures hold sums of several members' numbers, so that no upload may be rounded.

    Raises
    ------
    LinkError
        If no client fits the upper segment.
    RefusedError
        If too few clients fit to form a group.
    """

    def __init__(
        self,
        seed: int,
        rules: MixerRules,
        opening: Opening,
        mixer: Mixer,
        geometry: Geometry | None,
        clients: Clients,
        ledger: RoundLedger | None,
    ) -> None:
        self._rules = rules
        self._opening = opening
        self._mixer = mixer
        self._clients = clients
        self._ledger = ledger
        labels = LabelRules(opening.classes, opening.multi_label, any_class=True)
        self._intake = PrivateIntake(labels, DTYPES[opening.dtype])
        self._once = SeenKeys()
        self._intake.begin_round(clients)
        shape, batches = agree_on_shape(clients, geometry, opening.classes)
        length = RoundLength.of(batches, opening.steps_per_round or None, opening.epochs_per_round)
        self._planner = Planner(mixer, shape, length, seed, opening.round)
        self._batches = WholeBatches(clients, self._intake, _require_none)
        self._number = 0
        self._last: tuple[Plan, Mixed, list[int]] | None = None
        plan = self._plan(clients.alive)
        self.sums = plan.sums
        groups = len(plan.passes[0])
        if not groups:
            n = len(clients.alive)
            raise RefusedError(
                f"{counted(n, 'node')} {are(n)} too few for a group of at least "
                f"{rules.least_members}"
            )
        number_bytes = groups * DTYPES[opening.dtype].itemsize
        self.gradient_bytes = number_bytes * math.prod(shape.size)
        self.mixture_bytes = self.gradient_bytes + number_bytes * shape.batch * opening.classes
        mixture = SplitDescription(
            num_examples=batches * shape.batch,
            batch_size=shape.batch,
            segment=SegmentDescription(
                prefix=shape.prefix, patches=shape.patches, width=shape.width
            ),
        )
        self.sizes: dict[str, Any] = {"groups": groups, **mixture.to_plain()}

    @property
    def spent_nodes(self) -> int:
        """Number of the remaining nodes that have spent their privacy budget."""
        return len(self._intake.spent_clients & set(self._clients.alive))

    def take(self, arguments: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
        """Take a step.

        Parameters
        ----------
        arguments
            "number", "progress", and the "gradients" of the last step's mixtures, by group.

        Returns
        -------
        By group: "smashed" (b, prefix + N, d), and soft "labels" (b, L). Members, ratios and masks
        are not included.

        Raises
        ------
        RefusedError
            If the step is not the next one, or a gradient does not have its mixture's shape or is
            not finite.
        """
        progress = arguments.get("progress")
        if not isinstance(progress, (int, float)) or not 0 <= progress <= MAX_COUNT:
            raise RefusedError("a step's progress is not a number of rounds")
        self._owe(arguments)
        members = [c for c in self._clients.alive if c not in self._intake.spent_clients]
        plan = self._hiding(self._plan(members))
        came = dict(sorted(self._batches.take(self._number, float(progress), plan)))
        self._note_labels(came)
        self._number += 1
        group_of: dict[int, int] = {}
        for number, group in enumerate(plan.passes[0]):
            arrived = [member for member in group.members if member.client in came]
            if len(arrived) >= self._rules.least_members and self._hides(arrived):
                group_of |= dict.fromkeys((member.client for member in arrived), number)
        mixed = self._merged({client: came[client] for client in group_of}, plan)
        if mixed is None:
            return {}
        if self._ledger is not None:
            self._ledger.charge(plan, mixed)
        groups = [group_of[source.members[0].client] for source in mixed.sources]
        self._last = plan, mixed, groups
        batch = plan.shape.batch
        return {
            str(group): {
                "smashed": mixed.smashed[row * batch : (row + 1) * batch],
                "labels": mixed.targets[row * batch : (row + 1) * batch],
            }
            for row, group in enumerate(groups)
        }

    def finish(self, arguments: Mapping[str, Any]) -> None:
        """Deliver the last gradients; raise RefusedError as for `take`."""
        self._owe(arguments)
        self._batches.finish(self._number)

    def _plan(self, members: Sequence[int]) -> Plan:
        """Draw the next step's plan, without groups too small to hide their members."""
        try:
            plan = self._planner.plan(members, self._number)
        except ValueError as error:  # an option that these sizes do not allow
            raise RefusedError(str(error)) from None
        groups = tuple(
            group for group in plan.passes[0] if len(group.members) >= self._rules.least_members
        )
        return replace(plan, passes=(groups,))

    def _hiding(self, plan: Plan) -> Plan:
        """Leave out groups in which one member's upload is nearly the whole mixture."""
        groups = tuple(group for group in plan.passes[0] if self._hides(group.members))
        return replace(plan, passes=(groups,))

    def _hides(self, members: Sequence[Member]) -> bool:
        """Return whether no member's part of the mixture of these is larger than allowed."""
        ratios = [member.share.lam for member in members]
        return max(ratios) <= self._rules.most_ratio * sum(ratios)

    def _note_labels(self, uploads: Mapping[int, Upload]) -> None:
        """Log, once for each client, that it has labels that are not classes.

        The server chooses the number of classes. If a client failed because of them, the server
        would learn which labels belong to which client.
        """
        for client in sorted(uploads):
            labels = uploads[client].labels
            if client in self._once or not isinstance(labels, Tensor):
                continue
            if wrong := self._wrong(labels):
                self._once.add(client)
                log.warning(
                    "client %d: labels %s; such labels count for nothing in the mixtures, "
                    "and the server does not learn which client has them",
                    client,
                    wrong,
                )

    def _wrong(self, labels: Tensor) -> str | None:
        return wrong_labels(labels, self._opening.classes, multi_label=self._opening.multi_label)

    def _merged(self, uploads: Mapping[int, Upload], plan: Plan) -> Mixed | None:
        try:
            return self._mixer.merge(uploads, plan, num_classes=self._opening.classes)
        except EmptyMixtureError:
            return None

    def _owe(self, arguments: Mapping[str, Any]) -> None:
        """Split the gradients of the last step's mixtures, to send with the next exchange."""
        if arguments.get("number") != self._number:
            raise RefusedError(f"the next step is number {self._number}")
        gradients = arguments.get("gradients")
        if not isinstance(gradients, dict):
            raise RefusedError("a step must name its gradients, if there are any")
        if (last := self._last) is None:
            if gradients:
                raise RefusedError("there is no mixture for these gradients")
            return
        plan, mixed, groups = last
        if not gradients.keys() <= {str(group) for group in groups}:
            raise RefusedError("there is no mixture for these gradients")
        like = mixed.smashed
        for part in gradients.values():
            if not isinstance(part, Tensor) or (part.shape, part.dtype) != (
                plan.shape.size,
                like.dtype,
            ):
                raise RefusedError("a gradient does not have the shape and dtype of its mixture")
            try:
                check_tensor(part, plan.shape.size, like.dtype)
                check_magnitude(part)
            except UploadError:
                # The members would refuse it, and their failures would name the group.
                raise RefusedError(
                    f"a gradient has NaN or infinite numbers, or some beyond {LARGEST:g}"
                ) from None
        self._last = None
        nothing = torch.zeros(plan.shape.size, dtype=like.dtype)
        whole = torch.cat([gradients.get(str(group), nothing) for group in groups])
        lost = [row for row, group in enumerate(groups) if str(group) not in gradients]
        self._batches.owed = gradients_of(self._mixer, whole, mixed, plan, lost)


def _require_none(clients: Clients) -> None:
    """Continue with the remaining clients: the ServerApp decides how many a round needs."""
