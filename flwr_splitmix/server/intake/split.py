"""The intake of the L shape: checks uploads before the upper segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.labels import misshapen, wrong_labels
from flwr_splitmix.links import Clients
from flwr_splitmix.mixers import Plan, Share, SmashedShape, Upload
from flwr_splitmix.server.finite import FiniteCheck
from flwr_splitmix.server.intake.checks import (
    NOT_FINITE,
    UploadError,
    check_range,
    check_shape,
    check_size,
    check_tensor,
)
from flwr_splitmix.words import counted


class UploadIntake:
    """Reads the replies to steps, for the lifetime of a strategy.

    Parameters
    ----------
    labels
        Each client's labels, by client index: int64 (examples,), or multi-label (examples, L). For
        plans that ask for ids.
    multi_label
        Whether an example may have any number of the labels.
    any_class
        Whether a label that is no class is accepted; it then counts for nothing in a mixture.

    Attributes
    ----------
    spent
        Clients that reported that their privacy budget is spent.
    finite
        Checks for numbers that are not finite.
    """

    def __init__(
        self,
        num_classes: int,
        dtype: torch.dtype,
        labels: Sequence[Tensor] | None = None,
        *,
        multi_label: bool = False,
        any_class: bool = False,
    ) -> None:
        self.spent: set[int] = set()
        self._num_classes = num_classes
        self._dtype = dtype
        self._labels = labels
        self._multi_label = multi_label
        self._any_class = any_class
        self.finite = FiniteCheck()

    def take(
        self, clients: Clients, client: int, reply: Mapping[str, Any], plan: Plan
    ) -> Upload | None:
        """Return a client's upload; None if it sent none, or an invalid one and is left out."""
        if reply.get("budget-spent") is True:
            self.spent.add(client)
            return None
        table = None
        if self._labels is not None and client < len(self._labels):
            table = self._labels[client]
        try:
            return read_upload(
                reply,
                plan,
                client,
                self._num_classes,
                self._dtype,
                table,
                self.finite,
                multi_label=self._multi_label,
                any_class=self._any_class,
            )
        except UploadError as error:
            clients.fail(client, str(error))
            return None

    def begin_round(self, clients: Clients) -> None:
        """Reset `spent` to the clients whose budget is already spent.

        What an earlier round that did not end has left in `finite` is forgotten.
        """
        self.finite.late()
        said = clients.descriptions
        self.spent = {c for c in clients.alive if said[c].get("budget-spent")}

    def end_round(self, clients: Clients) -> None:
        """Leave out clients whose uploads have turned out not to be finite."""
        for client in self.finite.late():
            clients.fail(client, NOT_FINITE)


def read_upload(
    reply: Mapping[str, Any],
    plan: Plan,
    client: int,
    num_classes: int,
    dtype: torch.dtype,
    table: Tensor | None = None,
    finite: FiniteCheck | None = None,
    *,
    multi_label: bool = False,
    any_class: bool = False,
) -> Upload:
    """Check one client's reply to a step and return it as an upload.

    Parameters
    ----------
    table
        Labels of this client's examples, int64 (examples,) or multi-label (examples, L), if the
        plan asks for ids.
    finite
        Checks for NaN and infinite numbers; None checks at once, on any device.
    multi_label
        Whether labels are multi-label, int64 (b, L) of 0 and 1; soft ones are floats either way.
    any_class
        Whether a label that is no class is accepted.

    Raises
    ------
    UploadError
        If a tensor is missing, has the wrong shape or dtype, is not finite, or has numbers beyond
        what its share allows (with noise: clipping and the farthest draw), or if a label is not a
        class, unless `any_class`; the message names what was expected.
    """
    shares = plan.shares(client)
    smashed, labels = reply.get("smashed"), reply.get("labels")
    if not isinstance(smashed, (list, tuple)) or len(smashed) != len(shares):
        raise UploadError(f"uploaded no list of {counted(len(shares), 'smashed tensor')}")
    finite = finite or FiniteCheck(waits=True)
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
            check_size(tensor)
            check_range(tensor, -share.smashed_limit, share.smashed_limit, "smashed data")
        checked.append(finite.cleaned(client, tensor) if passes is None else tensor)
    read = _read_labels(
        labels,
        plan,
        shares,
        num_classes,
        dtype,
        table,
        multi_label=multi_label,
        any_class=any_class,
    )
    return Upload(checked, read)


def _read_labels(
    labels: Any,
    plan: Plan,
    shares: Sequence[Share | None],
    num_classes: int,
    dtype: torch.dtype,
    table: Tensor | None,
    *,
    multi_label: bool,
    any_class: bool,
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
                check_tensor(soft, (batch, num_classes), share.label_dtype(dtype))
                check_size(soft)
                check_range(soft, *share.label_range, "soft labels")
        return labels
    if "ids" in kinds:
        if table is None:
            raise UploadError("sends ids instead of labels, and the server has no labels for it")
        return table[_check_integers(labels, batch, len(table), "ids")]
    return _check_integers(
        labels, batch, num_classes, "labels", multi_label=multi_label, any_class=any_class
    )


def read_test_upload(
    reply: Mapping[str, Any],
    shape: SmashedShape,
    num_classes: int,
    dtype: torch.dtype,
    *,
    multi_label: bool = False,
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
    check_size(smashed[0])
    return smashed[0], _check_integers(
        labels, shape.batch, num_classes, "labels", multi_label=multi_label
    )


def _check_integers(
    values: Any,
    batch: int,
    limit: int,
    what: str,
    *,
    multi_label: bool = False,
    any_class: bool = False,
) -> Tensor:
    if not isinstance(values, Tensor):
        raise UploadError(f"uploaded no {what}")
    ids = what == "ids"
    check = misshapen if any_class else wrong_labels
    if wrong := check(values, limit, batch=batch, multi_label=multi_label, ids=ids):
        raise UploadError(f"{what} {wrong}")
    return values
