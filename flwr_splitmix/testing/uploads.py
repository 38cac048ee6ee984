"""One upload against what the client's shares allow: the smashed data and the labels in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.mixers import Share


def check_upload(
    where: str,
    payload: Mapping[str, Any],
    shares: Sequence[Share | None],
    output: Tensor,
    classes: Tensor,
    ids: Tensor,
    num_classes: int,
) -> None:
    """Check a client's reply in a training step.

    Parameters
    ----------
    where
        The law, the step and the client, at the beginning of error messages.
    payload
        The reply.
    shares
        The client's share of each pass; None where it has none.
    output
        Output (b, tokens, d) of its lower segment.
    classes, ids
        The classes of the batch's examples, int64 (b,) or (b, L), and their ids, int64 (b,).
    num_classes
        Number L of classes.

    Raises
    ------
    AssertionError
        If the upload is not what the shares keep of `output`, with labels as they require.
    """
    if payload.keys() != {"smashed", "labels"}:
        raise AssertionError(
            f"{where} uploads {', '.join(sorted(payload))}; expected smashed and labels"
        )
    if len(payload["smashed"]) != len(shares):
        raise AssertionError(f"{where} uploads other than one tensor for each of its passes")
    for share, smashed in zip(shares, payload["smashed"], strict=True):
        _check_smashed(share, smashed, output, where)
    _check_labels(payload["labels"], shares, classes, ids, num_classes, where)


def _check_smashed(share: Share | None, upload: Any, output: Tensor, where: str) -> None:
    if share is None:
        if upload is not None:
            raise AssertionError(f"{where} uploads in a pass in which it has no share")
        return
    batch, tokens, width = output.shape
    expected = share.upload_shape((batch, tokens, width))
    if not isinstance(upload, Tensor) or tuple(upload.shape) != expected:
        shape = tuple(upload.shape) if isinstance(upload, Tensor) else type(upload).__name__
        raise AssertionError(f"{where} uploads {shape}, its share is {expected}")
    if share.deterministic and not torch.equal(upload, share.upload(output)[0]):
        raise AssertionError(f"{where} uploads other numbers than its share of the smashed data")


def _check_labels(
    labels: Any,
    shares: Sequence[Share | None],
    classes: Tensor,
    ids: Tensor,
    num_classes: int,
    where: str,
) -> None:
    kinds = {share.label_kind for share in shares if share is not None}
    if "soft" not in kinds:
        (kind,) = kinds
        expected = ids if kind == "ids" else classes
        if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
            raise AssertionError(f"{where} sends labels that are not int64 {kind}")
        if not torch.equal(labels, expected):
            raise AssertionError(
                f"{where} sends {labels.tolist()} as labels; its batch's {kind} are "
                f"{expected.tolist()}"
            )
        return
    if not isinstance(labels, list) or len(labels) != len(shares):
        raise AssertionError(f"{where} sends no list of soft labels, one for each of its passes")
    for share, soft in zip(shares, labels, strict=True):
        if (share is None) != (soft is None):
            raise AssertionError(f"{where} sends labels in a pass in which it has no share")
        if share is None:
            continue
        if not soft.is_floating_point() or tuple(soft.shape) != (len(classes), num_classes):
            raise AssertionError(
                f"{where} sends {tuple(soft.shape)} of {soft.dtype} where soft labels are asked for"
            )
        # Of several labels each may have the whole weight, of classes all together.
        most = float(soft.max() if classes.dim() == 2 else soft.sum(1).max())
        if share.deterministic and (float(soft.min()) < 0 or most > share.lam + 1e-12):
            raise AssertionError(
                f"{where} sends soft labels of weight {most:.6g}, its mixing ratio is "
                f"{share.lam:.6g}"
            )
