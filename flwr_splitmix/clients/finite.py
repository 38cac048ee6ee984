"""Where NaN and infinite numbers of a client come from: data, weights, loss or training."""

from __future__ import annotations

import logging
import math

from torch import Tensor, nn

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.finite import all_finite, squares_finite
from flwr_splitmix.seen_keys import SeenKeys

log = logging.getLogger("flwr.splitmix")


def check_finite(name: str, segment: nn.Module, inputs: Tensor, *outputs: Tensor) -> None:
    """Find out where NaN or infinite numbers in a segment's outputs come from.

    Parameters
    ----------
    name
        Name of the segment: "lower segment" or "head".

    Raises
    ------
    ClientError
        If there are any: from the inputs, from the weights, or from neither.
    """
    if all_finite(outputs):
        return
    _check_data(inputs)
    _check_weights(name, segment)
    raise ClientError(
        f"its {name} makes NaN or infinite numbers of finite data with finite weights, as a "
        "division by 0 or a logarithm of 0 does"
    )


def may_step(
    name: str, segment: nn.Module, inputs: Tensor | None, once: SeenKeys, *, waits: bool = True
) -> bool:
    """Return whether an optimizer step may be taken with the gradients of a segment.

    Not if it would make weights NaN, or Adam's squares infinite.

    Parameters
    ----------
    name
        Name of the segment: "lower segment" or "head and tail".
    inputs
        The batch's, searched for the reason if gradients are not finite; None if an
        error must not reveal data: then this client logs once that a step is left out.
    once
        The warnings that the log already has; added to.
    waits
        Whether to wait for an accelerator. Else gradients that are not finite, where no error may
        report them, become zeros, and others are not checked.

    Raises
    ------
    ClientError
        If gradients are NaN or infinite, or their squares are, and an error may report it.
    """
    if inputs is not None:
        if waits:
            _check_gradients(name, segment, inputs)
        return True
    if not waits:
        zero_unless_finite(segment)
        return True
    fine = gradients_finite(segment)
    if not fine and once.add("no step"):
        log.warning(
            "the gradient of a client's %s has NaN or infinite numbers, so that no step is taken: "
            "training has diverged, or the server sends far too large numbers",
            name,
        )
    return fine


def _check_gradients(name: str, segment: nn.Module, inputs: Tensor) -> None:
    """Refuse gradients that are not finite, or their squares.

    An infinite input may give finite outputs, as behind a tanh, and a gradient of NaN.
    """
    if gradients_finite(segment):
        return
    _check_data(inputs)
    raise ClientError(
        f"the gradient of its {name} has NaN or infinite numbers, so that no step is taken: "
        "training has diverged; a smaller learning rate, or gradients that are clipped, may "
        "prevent it"
    )


def gradients_finite(segment: nn.Module) -> bool:
    """Return whether the gradients of a segment and their squares are finite; waits for them."""
    gradients = _gradients(segment)
    return not gradients or bool(squares_finite(gradients))


def zero_unless_finite(segment: nn.Module) -> None:
    """Set all gradients of a segment to 0 if one or its square is not finite; waits for none."""
    if gradients := _gradients(segment):
        spoilt = ~squares_finite(gradients)
        for gradient in gradients:
            gradient.masked_fill_(spoilt, 0)


def check_loss(loss: Tensor, gradient: Tensor | None, tail: nn.Module, labels: Tensor) -> None:
    """Find out where a loss that is NaN or infinite comes from, given finite hidden states.

    On the CPU also whether its gradient is; an accelerator would have to be waited for.

    Parameters
    ----------
    loss, gradient
        A scalar, and its gradient at the hidden states (b, T, d); None if it is not used.
    labels
        Those of the batch.

    Raises
    ------
    ClientError
        If it is: from the labels, from the weights of the tail, or from neither; or if its gradient
        is and the loss is finite.
    """
    value = loss.item()
    if math.isfinite(value):
        if gradient is None or gradient.device.type != "cpu":
            return
        if not all_finite([gradient]):
            raise ClientError(
                "the gradient of loss has NaN or infinite numbers, though loss is finite, as that "
                "of a square root or a norm has at 0: add a small number under the root"
            )
        return
    begin = f"loss is {'NaN' if math.isnan(value) else 'infinite'}: "
    if not bool(labels.isfinite().all()):
        raise ClientError(
            f"{begin}its labels have NaN or infinite numbers: replace them in the data set, leave "
            "these examples out, or let loss pass over them"
        )
    _check_weights("tail", tail, begin)
    raise ClientError(
        f"{begin}it makes that of finite labels with finite weights, as a division by 0, a "
        "logarithm of 0 or a number too large for its type does"
    )


def _gradients(segment: nn.Module) -> list[Tensor]:
    return [p.grad for p in segment.parameters() if p.grad is not None]


def _check_weights(name: str, segment: nn.Module, begin: str = "") -> None:
    if not all(bool(weight.isfinite().all()) for weight in segment.parameters()):
        raise ClientError(
            f"{begin}the weights of its {name} are NaN or infinite: training has diverged; a "
            "smaller learning rate, or gradients that are clipped, may prevent it"
        )


def _check_data(inputs: Tensor) -> None:
    if not bool(inputs.isfinite().all()):
        raise ClientError(
            "its data have NaN or infinite numbers: replace them in the data set, or leave these "
            "examples out"
        )
