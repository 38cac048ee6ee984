"""Checks of a server's requests: the client's own sizes bound them before memory is allocated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.data.batches import TEST_BATCH
from flwr_splitmix.device import in_float64
from flwr_splitmix.mixers import InputShare, Share, share_from_wire
from flwr_splitmix.segments.batch_norm import largest

MAX_PASSES = 64
"""Maximum number of passes of one step, and of parts of a mixed input."""

MIN_LABELS = 2**18
"""How many numbers the soft labels of one example may always have, over all passes."""


def shares_asked_for(
    plan: Sequence[Mapping[str, Any] | None],
    kinds: Iterable[type[Share]],
    sample: int,
    *,
    sums: bool,
) -> list[Share | None]:
    """Return the share of each pass that a step's plan asks for, as plain values.

    Parameters
    ----------
    kinds
        The kinds of shares that this client knows.
    sample
        Numbers in the smashed data of one example.
    sums
        Whether this client sends what a mixer adds up.

    Raises
    ------
    ClientError
        Raised by `check_plan`, `check_label_memory` and `check_no_sums`.
    UnknownShareError
        If the plan has a share that the client does not know.
    """
    check_plan(plan)
    shares = [None if values is None else share_from_wire(values, kinds) for values in plan]
    check_label_memory(shares, sample)
    if not sums:
        check_no_sums(shares)
    return shares


def check_plan(plan: Sequence[Any]) -> None:
    """Raise ClientError unless a step's plan has at least one share, and not too many passes.

    Labels leave a client only with a share: a plan without any would ask for labels alone.
    """
    if not any(share is not None for share in plan):
        raise ClientError("the server's plan has no share for this client, so nothing is sent")
    if len(plan) > MAX_PASSES:
        raise ClientError(
            f"the server's plan has {len(plan)} passes; at most {MAX_PASSES} are allowed"
        )


def check_label_memory(shares: Sequence[Share | None], sample: int) -> None:
    """Raise ClientError if the soft labels of an example would have too many numbers.

    Refused are, over all passes, more than `MIN_LABELS` numbers that are also more than four times
    those of its smashed data; and inputs that are mixed of more than `MAX_PASSES`.

    Parameters
    ----------
    sample
        Numbers in the smashed data of one example.
    """
    classes = 0
    for share in shares:
        # A noisy share has none of these inside: they send soft labels.
        if isinstance(share, InputShare) and len(share.parts) > MAX_PASSES:
            raise ClientError(
                f"the server mixes {len(share.parts)} inputs into one; at most {MAX_PASSES} are "
                "allowed"
            )
        classes += getattr(share, "classes", 0)
    most = max(MIN_LABELS, 4 * sample)
    if classes > most:
        raise ClientError(
            f"the server asks for labels of {classes} numbers for each example; at most {most} are "
            "allowed"
        )


def check_no_sums(shares: Sequence[Share | None]) -> None:
    """Raise ClientError if a mixer is to add up what this client sends, which it does not."""
    if any(share.summed for share in shares if share is not None):
        raise ClientError(
            "this node has a mixer of its own (link-via) and sends it no rounded numbers to "
            "add up, as the sum could be taken apart: set the run's wire-dtype to 'keep'"
        )


def check_range(kind: str, start: int, stop: int, size: int) -> None:
    """Raise ClientError unless `start` to `stop` is a valid range of `size` test examples.

    More than `TEST_BATCH` at once, which no evaluation asks for, may be too many for the device.
    """
    if not (type(start) is type(stop) is int and 0 <= start < stop <= size):
        raise ClientError(
            f"the server asks for {kind} test examples {_shown(start)} to {_shown(stop)}; there "
            f"are {size}"
        )
    if stop - start > TEST_BATCH:
        raise ClientError(
            f"the server asks for {stop - start} {kind} test examples at once; at most "
            f"{TEST_BATCH} are allowed"
        )


def check_numbers(
    subject: str,
    tensors: Mapping[str, Tensor],
    *,
    bounded: bool,
    client_tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Raise ClientError if numbers from a server are NaN, infinite, or absurdly large.

    Parameters
    ----------
    subject
        Description of the tensors, for the message.
    bounded
        Whether to reject finite numbers beyond `largest` too.
    client_tensors
        The client's tensors of these names: what equals them passes, such as a mask of -inf, or a
        constant with NaN.
    """
    for name, tensor in tensors.items():
        if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
            continue
        if client_tensors is not None and _same(tensor, client_tensors[name].to(tensor.device)):
            continue
        numbers = tensor.detach().resolve_conj()
        least, most = (torch.view_as_real(numbers) if tensor.is_complex() else numbers).aminmax()
        if not bool(torch.isfinite(least) & torch.isfinite(most)):
            raise ClientError(f"{subject} {name} has NaN or infinite numbers")
        if bounded and max(-float(least), float(most)) > (limit := largest(name)):
            raise ClientError(f"{subject} {name} has numbers beyond {limit:g}")


def check_received(subject: str, tensors: Sequence[Tensor], *, bounded: bool = False) -> None:
    """Raise ClientError as `check_numbers` does, naming a tensor's position in the list.

    Tensors on an accelerator come from a server in this process. Reading them forces a
    synchronisation, so they are checked only if `bounded`.
    """
    looked = {str(i): t for i, t in enumerate(tensors) if bounded or t.device.type == "cpu"}
    # Autograd takes integers for a gradient, too.
    floats = {i: t if t.is_floating_point() else in_float64(t) for i, t in looked.items()}
    check_numbers(subject, floats, bounded=bounded)


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether tensors are equal, NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _shown(value: object) -> str:
    return repr(value)[:40] if isinstance(value, int) and abs(value) < 10**18 else "no place"
