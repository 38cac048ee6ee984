"""Where NaN and infinite numbers of a client come from: its data, its weights or its training."""

from __future__ import annotations

from torch import Tensor, nn

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.finite import all_finite, squares_finite


def check_finite(name: str, segment: nn.Module, inputs: Tensor, *outputs: Tensor) -> None:
    """Find out where NaN or infinite numbers in a segment's outputs come from.

    Parameters
    ----------
    name
        What the segment is called: "lower segment" or "head".

    Raises
    ------
    ClientError
        If there are any: from the inputs, from the weights, or from neither.
    """
    if all_finite(outputs):
        return
    _check_data(inputs)
    if not all(bool(weight.isfinite().all()) for weight in segment.parameters()):
        raise ClientError(
            f"the weights of its {name} are NaN or infinite: training has diverged; a smaller "
            "learning rate, or gradients that are clipped, may prevent it"
        )
    raise ClientError(
        f"its {name} makes NaN or infinite numbers of finite data with finite weights, as a "
        "division by 0 or a logarithm of 0 does"
    )


def check_gradients(name: str, segment: nn.Module, inputs: Tensor | None) -> None:
    """Refuse gradients that would make a segment's weights NaN, or Adam's squares infinite.

    An infinite input may give finite outputs, as behind a tanh, and a gradient of NaN.

    Parameters
    ----------
    name
        What the segment is called: "lower segment" or "head and tail".
    inputs
        Those of the batch; None does not look at them.

    Raises
    ------
    ClientError
        If gradients are NaN or infinite, or so large that their squares are.
    """
    gradients = [p.grad for p in segment.parameters() if p.grad is not None]
    if not gradients or bool(squares_finite(gradients)):
        return
    if inputs is not None:
        _check_data(inputs)
    raise ClientError(
        f"the gradient of its {name} has NaN or infinite numbers, so that no step is taken: "
        "training has diverged; a smaller learning rate, or gradients that are clipped, may "
        "prevent it"
    )


def _check_data(inputs: Tensor) -> None:
    if not bool(inputs.isfinite().all()):
        raise ClientError(
            "its data have NaN or infinite numbers: replace them in the data set, or leave these "
            "examples out"
        )
