"""The intake of the L shape: checks uploads before the upper segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.description import SplitDescription
from flwr_splitmix.labels import misshapen, wrong_labels
from flwr_splitmix.links import Clients
from flwr_splitmix.mixers import Plan, Share, SmashedShape, Upload
from flwr_splitmix.server.intake.checks import (
    NOT_FINITE,
    UploadError,
    check_magnitude,
    check_range,
    check_shape,
    check_tensor,
)
from flwr_splitmix.server.intake.finite import FiniteCheck
from flwr_splitmix.words import counted


@dataclass(frozen=True)
class LabelRules:
    """The labels that a client may upload, where they are neither soft nor ids.

    Parameters
    ----------
    num_classes
        Number L of classes or, if multi-label, of labels; soft labels have as many columns.
    multi_label
        Whether an example may have any number of the labels.
    any_class
        Whether a label that is not a class is accepted; it then counts for nothing in a mixture.
    """

    num_classes: int
    multi_label: bool = False
    any_class: bool = False

    def check(self, labels: Any, batch: int) -> Tensor:
        """Return labels, int64 (b,) in 0..L-1 or multi-label int64 (b, L) of 0 and 1.

        Raises
        ------
        UploadError
            If they are not a tensor of this shape and dtype, or one is not a class, unless
            `any_class`; the message names what was expected.
        """
        if not isinstance(labels, Tensor):
            raise UploadError("uploaded no labels")
        check = misshapen if self.any_class else wrong_labels
        if wrong := check(labels, self.num_classes, batch=batch, multi_label=self.multi_label):
            raise UploadError(f"labels {wrong}")
        return labels


class UploadIntake:
    """Reads the replies to steps, for the lifetime of a strategy.

    Parameters
    ----------
    rules
        Which labels are accepted.
    dtype
        Of smashed data.
    labels
        Each client's labels, by client index: int64 (examples,), or multi-label (examples, L). For
        plans that ask for ids.

    Attributes
    ----------
    spent_clients
        Clients that reported that their privacy budget is spent.
    finite
        Checks for numbers that are not finite.
    """

    def __init__(
        self, rules: LabelRules, dtype: torch.dtype, labels: Sequence[Tensor] | None = None
    ) -> None:
        self.spent_clients: set[int] = set()
        self._rules = rules
        self._dtype = dtype
        self._labels = labels
        self.finite = FiniteCheck()

    def take(
        self, clients: Clients, client: int, reply: Mapping[str, Any], plan: Plan
    ) -> Upload | None:
        """Return a client's upload; None if it sent none, or an invalid one and is left out."""
        if reply.get("budget-spent") is True:
            self.spent_clients.add(client)
            return None
        table = None
        if self._labels is not None and client < len(self._labels):
            table = self._labels[client]
        try:
            return read_upload(
                reply, plan, client, self._rules, self._dtype, table, finite=self.finite
            )
        except UploadError as error:
            self.leave_out(clients, client, error)
            return None

    def leave_out(self, clients: Clients, client: int, error: UploadError) -> None:
        """Leave out a client that has not sent what it was asked for, with the reason."""
        clients.fail(client, str(error))

    def begin_round(self, clients: Clients) -> None:
        """Reset `spent_clients` to the clients whose budget is already spent.

        Entries in `finite` from an earlier round that did not end are forgotten.
        """
        self.finite.late()
        descriptions = clients.described(SplitDescription)
        self.spent_clients = {
            client
            for client, description in descriptions.items()
            if description.uploads.budget_spent
        }

    def end_round(self, clients: Clients) -> None:
        """Leave out clients whose uploads have turned out not to be finite."""
        for client in self.finite.late():
            clients.fail(client, NOT_FINITE)


def read_upload(
    reply: Mapping[str, Any],
    plan: Plan,
    client: int,
    rules: LabelRules,
    dtype: torch.dtype,
    table: Tensor | None = None,
    *,
    finite: FiniteCheck,
) -> Upload:
    """Check one client's reply to a step and return it as an upload.

    Parameters
    ----------
    rules
        Which labels are accepted, where the plan asks for some.
    dtype
        Of smashed data.
    table
        Labels of this client's examples, int64 (examples,) or multi-label (examples, L), if the
        plan asks for ids.
    finite
        Checks for NaN and infinite numbers.

    Raises
    ------
    UploadError
        If a tensor is missing, has the wrong shape or dtype, is not finite, or has numbers beyond
        what its share allows (with noise: clipping and the farthest draw), or if labels are not
        those of `rules`; the message names what was expected.
    """
    shares = plan.shares(client)
    smashed, labels = reply.get("smashed"), reply.get("labels")
    if not isinstance(smashed, (list, tuple)) or len(smashed) != len(shares):
        raise UploadError(f"uploaded no list of {counted(len(shares), 'smashed tensor')}")
    checked: list[Tensor | None] = []
    for tensor, share in zip(smashed, shares, strict=True):
        if (tensor is None) != (share is None):
            raise UploadError("uploaded smashed data for a pass that is not its own")
        if share is None:
            checked.append(None)
            continue
        check_shape(tensor, share.upload_shape(plan.shape.size), dtype)
        passes = finite.passes(tensor)
        if passes is False:
            raise UploadError(NOT_FINITE)
        if passes:
            check_magnitude(tensor)
            check_range(tensor, -share.smashed_limit, share.smashed_limit, "smashed data")
        checked.append(finite.cleaned(client, tensor) if passes is None else tensor)
    return Upload(checked, _read_labels(labels, plan, shares, rules, dtype, table))


def _read_labels(
    labels: Any,
    plan: Plan,
    shares: Sequence[Share | None],
    rules: LabelRules,
    dtype: torch.dtype,
    table: Tensor | None,
) -> Tensor | Sequence[Tensor | None]:
    """Check labels of the kind that the plan asks for, and replace ids by labels."""
    kinds = {share.label_kind for share in shares if share is not None}
    batch = plan.shape.batch
    if "soft" in kinds:
        if not isinstance(labels, (list, tuple)) or len(labels) != len(shares):
            raise UploadError(f"uploaded no list of {counted(len(shares), 'soft label')}")
        for soft, share in zip(labels, shares, strict=True):
            if (soft is None) != (share is None):
                raise UploadError("uploaded labels for a pass that is not its own")
            if share is not None:
                check_tensor(soft, (batch, rules.num_classes), share.label_dtype(dtype))
                check_magnitude(soft)
                check_range(soft, *share.label_range, "soft labels")
        return labels
    if "ids" in kinds:
        if table is None:
            raise UploadError("sends ids instead of labels, and the server has no labels for it")
        return table[_check_ids(labels, batch, len(table))]
    return rules.check(labels, batch)


def _check_ids(ids: Any, batch: int, examples: int) -> Tensor:
    """Return ids, int64 (b,) of a client's examples."""
    if not isinstance(ids, Tensor):
        raise UploadError("uploaded no ids")
    if wrong := wrong_labels(ids, examples, batch=batch, multi_label=False, remedy="none"):
        raise UploadError(f"ids {wrong}")
    return ids


def read_test_upload(
    reply: Mapping[str, Any],
    shape: SmashedShape,
    rules: LabelRules,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Check one client's encoded test examples: smashed data and labels.

    Raises
    ------
    UploadError
        As in `read_upload`.
    """
    smashed, labels = reply.get("smashed"), reply.get("labels")
    if not isinstance(smashed, (list, tuple)) or len(smashed) != 1:
        raise UploadError("uploaded no list of 1 smashed tensor")
    check_tensor(smashed[0], shape.size, dtype)
    check_magnitude(smashed[0])
    return smashed[0], rules.check(labels, shape.batch)
