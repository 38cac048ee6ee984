"""Checks of a share: what the methods that a user writes for it return."""

from __future__ import annotations

from torch import Tensor

from flwr_splitmix.mixers.share import OwnShareError, Share
from flwr_splitmix.words import described


def uploaded(share: Share, smashed: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a share uploads of smashed data, and its anchor; see `Share.upload`.

    Raises
    ------
    OwnShareError
        If `upload` does not return two tensors, or the upload does not have the shape that the
        server waits for (`upload_shape`).
    """
    output = share.upload(smashed)
    pair = output if isinstance(output, tuple) else (output,)
    if len(pair) != 2 or not all(isinstance(tensor, Tensor) for tensor in pair):
        kinds = ", ".join(type(tensor).__name__ for tensor in pair)
        raise OwnShareError(
            f"`upload` of share {share.name!r} must return (upload, anchor), two tensors; got "
            f"{kinds}"
        )
    upload, anchor = pair
    if smashed.dim() != 3:  # the server refuses it, whatever the share does with it
        return upload, anchor
    batch, tokens, width = smashed.shape
    shape: object = share.upload_shape((batch, tokens, width))
    if not isinstance(shape, (tuple, list)):
        raise OwnShareError(
            f"`upload_shape` of share {share.name!r} must return the shape (b, a, d) of its "
            f"upload, three numbers; got {described(shape)}"
        )
    expected = tuple(shape)
    if tuple(upload.shape) != expected:
        raise OwnShareError(
            f"`upload` of share {share.name!r} makes a tensor of shape {tuple(upload.shape)}, but "
            f"its `upload_shape` states {expected}"
        )
    return upload, anchor


def place_upload(share: Share, mixed: Tensor, upload: Tensor) -> None:
    """Let a share place its upload in its group's mixture; see `Share.place`.

    Raises
    ------
    TypeError
        If `place` returns another tensor, so that what it should have added in place is lost.
    """
    returned: object = share.place(mixed, upload)
    if returned is not None and returned is not mixed:
        raise TypeError(
            f"`place` of share {share.name!r} returns {described(returned)}; it must add the "
            "upload in place, such as mixed += upload, and return nothing"
        )


def picked(share: Share, gradient: Tensor) -> Tensor:
    """Return the cut-layer gradient that a share picks; see `Share.pick`.

    Raises
    ------
    TypeError
        If `pick` returns no tensor.
    """
    picked_gradient: object = share.pick(gradient)
    if not isinstance(picked_gradient, Tensor):
        raise TypeError(
            f"`pick` of share {share.name!r} returns {described(picked_gradient)}; expected the "
            "gradient of the client's anchor, a tensor"
        )
    return picked_gradient
