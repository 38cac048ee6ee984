"""A client's autograd graphs: uploads made from smashed data, and the backward pass from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.requests import check_received
from flwr_splitmix.mixers import Share
from flwr_splitmix.mixers.checked_share import uploaded
from flwr_splitmix.optimizers import ScheduledOptimizer
from flwr_splitmix.words import counted


def upload(
    shares: Sequence[Share | None], smashed: Tensor, labels: Tensor, ids: Tensor
) -> tuple[dict[str, Any], list[Tensor | None]]:
    """Return the uploads that the shares of all passes ask for, and the anchors of their gradients.

    Parameters
    ----------
    smashed
        (b, prefix + N, d), with its graph.
    labels
        int64 (b,), or soft labels (b, L).
    ids
        The examples' ids, int64 (b,).

    Raises
    ------
    ClientError
        If a share that learns gives an anchor without a graph.
    ValueError
        If an own share's `upload` does not return the shape of its `upload_shape`.
    """
    pairs = [(None, None) if s is None else uploaded(s, smashed) for s in shares]
    for share, (_, anchor) in zip(shares, pairs, strict=True):
        if share is None or anchor is None or not (share.learns and smashed.requires_grad):
            continue
        if anchor.numel() and not anchor.requires_grad:
            raise ClientError(
                f"share {share.name!r} detaches the smashed data, so that this client would learn "
                "nothing: upload must return (upload, anchor), the anchor within their graph"
            )
    uploads = [None if upload is None else upload.detach() for upload, _ in pairs]
    kinds = {share.label_kind for share in shares if share is not None}
    uploaded_labels: Tensor | list[Tensor | None] = labels
    if kinds == {"ids"}:
        uploaded_labels = ids
    elif "soft" in kinds:
        uploaded_labels = [
            None if s is None else s.upload_labels(labels, smashed.dtype) for s in shares
        ]
    return {"smashed": uploads, "labels": uploaded_labels}, [anchor for _, anchor in pairs]


def backward(
    anchors: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
    optimizer: ScheduledOptimizer,
    *,
    anew: bool,
    bounded: bool,
) -> bool:
    """Accumulate gradients of the lower segment and return whether there were any.

    A gradient of zeros is one: momentum and weight decay move weights without it. Only an upload
    without numbers, of a share that keeps no patch, has none.

    Parameters
    ----------
    anchors, gradients
        One per pass.
    anew
        Whether to zero the gradients accumulated so far.
    bounded
        Whether to reject very large gradients.

    Raises
    ------
    ClientError
        If the gradients have NaN, infinite or rejected values in the anchors' dtypes, or other
        shapes than the anchors.
    """
    if len(gradients) != len(anchors):
        raise ClientError(
            f"the server sends {counted(len(gradients), 'gradient')} of "
            f"{counted(len(anchors), 'pass')}"
        )
    pairs = [
        # Autograd would convert them: what is finite as it came may be infinite in another dtype.
        (anchor, gradient.to(anchor.dtype))
        for anchor, gradient in zip(anchors, gradients, strict=True)
        if anchor is not None and gradient is not None and anchor.requires_grad
    ]
    if not any(gradient.numel() for _, gradient in pairs):
        return False
    check_received("the server's gradient of pass", [g for _, g in pairs], bounded=bounded)
    for anchor, gradient in pairs:
        if gradient.shape != anchor.shape:
            raise ClientError(
                f"the server's gradient has shape {tuple(gradient.shape)}; expected "
                f"{tuple(anchor.shape)}: `pick` of an own share must return the gradient of its "
                "anchor"
            )
    if anew:
        optimizer.zero_grad()
    torch.autograd.backward([a for a, _ in pairs], [g.to(a.device) for a, g in pairs])
    return True
