"""Gradients of each example by Opacus, with an embedding's only at the rows that the batch uses."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from opacus import GradSampleModule
from opacus.utils.tensor_utils import sum_over_all_but_batch_and_last_n
from torch import Tensor, nn

from flwr_splitmix.hiding.unfit import REMEDY, UnfitError
from flwr_splitmix.private_names import forget_uses, used_once

# A head's input is ids, which have no gradient; Opacus' hooks need none. torch says so of whoever
# calls for the backward pass, on a GPU, where a thread of torch's own runs it, of `sys`.
warnings.filterwarnings("ignore", "Full backward hook", module=r"flwr_splitmix\.|sys$")


class SampleError(Exception):
    """Opacus fails to compute the examples' gradients of a layer.

    Parameters
    ----------
    layer
        The layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(
            f"Opacus cannot compute gradients of single examples for {type(layer).__name__}"
        )
        self.layer = layer


class ExampleGradients(GradSampleModule):  # type: ignore[misc]
    """Opacus' gradients of each example, kept small for embeddings.

    A text's gradient of an embedding is zero but for the rows of its own tokens. Opacus holds all
    rows for each text: 750 MB for 16 texts and 30,522 words of 384 numbers. Here `grad_sample` has
    the rows of the batch only, and the weight's `rows` says which: int64 (rows,), ascending. A
    weight that is used more than once in a pass, as a tied one is, keeps Opacus' form.
    """

    GRAD_SAMPLERS: ClassVar[Mapping[type[nn.Module], Any]]

    def capture_activations_hook(self, module: nn.Module, *arguments: Any) -> None:
        """Keep what a layer got; raises SampleError if Opacus cannot: it takes tensors only."""
        try:
            super().capture_activations_hook(module, *arguments)
        except Exception as error:
            raise SampleError(module) from error

    def capture_backprops_hook(self, module: nn.Module, *arguments: Any, **options: Any) -> None:
        """Compute the gradients of a layer; raises SampleError if Opacus cannot."""
        try:
            super().capture_backprops_hook(module, *arguments, **options)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise SampleError(module) from error

    def forget(self) -> None:
        """Discard what a step has left: activations, gradients and rows."""
        for module in self.modules():
            _remove(module, "activations", "max_batch_len")
        for parameter in self.trainable_parameters():
            parameter.grad_sample = None
            forget_uses(parameter)
            _remove(parameter, "rows")

    def trainable_parameters(self) -> list[Any]:
        """Return the parameters that are trained."""
        return [p for p in self.parameters() if p.requires_grad]

    def check_known(self, size: int) -> None:
        """Refuse a batch if some example's gradient of a trained weight is not known.

        Parameters
        ----------
        size
            Number of examples in the batch.

        Raises
        ------
        UnfitError
            If a layer does not keep a batch's examples apart, or weights are used outside of their
            own layer; the message has the weights' shape.
        """
        for parameter in self.trainable_parameters():
            samples, shape = parameter.grad_sample, tuple(parameter.shape)
            if samples is None:
                if parameter.grad is not None and parameter.grad.any():
                    raise UnfitError(
                        f"DP-SGD needs a gradient for each example, but weights of shape {shape} "
                        "are used outside of their own layer, so that theirs would be without "
                        f"noise; {REMEDY}"
                    )
            elif not isinstance(samples, Tensor) or len(samples) != size:
                raise UnfitError(
                    "DP-SGD needs a gradient for each example, but a layer with weights of shape "
                    f"{shape} does not keep examples apart; {REMEDY}"
                )

    def clipped_sums(self, clip_norm: float) -> Iterator[Tensor]:
        """Yield the sum of the examples' clipped gradients of each trained weight, in their order.

        Clipping and sum are those of Opacus' optimizer, but in float32 or wider: a sum of fewer
        bits is rounded by more than what a single example may change.

        A gradient with NaN or infinite numbers counts as 0: a server's numbers can make one
        example's gradient overflow, depending on the example. Clipped, it is still NaN, and so
        would be the batch's sum, which no noise hides.

        Parameters
        ----------
        clip_norm
            The largest L2 norm of an example's gradient of all weights together.

        Yields
        ------
        Tensors of the weights' shapes, float32 or wider; zeros where no example has a gradient.
        """
        trained = self.trainable_parameters()
        samples = (p.grad_sample for p in trained if p.grad_sample is not None)
        lengths = [_exact(each).flatten(1).norm(2, dim=1) for each in samples]
        if lengths:
            of_each = torch.stack([each.to(lengths[0].device) for each in lengths], dim=1)
            finite = of_each.isfinite().all(1)
            factors = (clip_norm / (of_each.norm(2, dim=1) + 1e-6)).clamp(max=1.0)
            factors = factors.where(finite, 0.0)
        for parameter in trained:
            total = torch.zeros_like(_exact(parameter.detach()))
            if parameter.grad_sample is not None:
                each = _exact(parameter.grad_sample)
                scales = factors.to(each.device, each.dtype)
                if not finite.all():
                    each = each.where(scales.view(-1, *(1,) * (each.dim() - 1)) != 0, 0.0)
                total = of_all_rows(parameter, torch.einsum("i,i...", scales, each))
            yield total


def _exact(tensor: Tensor) -> Tensor:
    """Return a tensor in float32, or as it is if it is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def of_all_rows(parameter: Any, gradient: Tensor) -> Tensor:
    """Return a sum of examples' gradients in the shape of the parameter."""
    rows = getattr(parameter, "rows", None)
    if rows is None:
        return gradient
    return gradient.new_zeros(parameter.shape).index_copy_(0, rows, gradient)


def _embedding(
    layer: nn.Embedding, activations: Sequence[Tensor], backprops: Tensor
) -> Mapping[nn.Parameter, Tensor]:
    """Return the texts' gradients (b, rows, d), given ids (b, ...) and gradients (b, ..., d)."""
    weight: Any = layer.weight
    if not weight.requires_grad:
        return {}
    if layer.padding_idx is not None:  # its row has no gradient
        padding = (activations[0] == layer.padding_idx).unsqueeze(-1)
        backprops = backprops.masked_fill(padding, 0)
    if not used_once(weight):
        every_row: Mapping[nn.Parameter, Tensor] = _opacus(layer, activations, backprops)
        return every_row
    ids = activations[0]
    weight.rows, places = torch.unique(ids, return_inverse=True)
    gradients = backprops.reshape(len(ids), -1, layer.embedding_dim)
    index = places.reshape(len(ids), -1, 1).expand_as(gradients)
    each = gradients.new_zeros(len(ids), len(weight.rows), layer.embedding_dim)
    return {weight: each.scatter_add_(1, index, gradients)}


def _layer_norm(
    layer: nn.LayerNorm, activations: Sequence[Tensor], backprops: Tensor
) -> Mapping[nn.Parameter, Tensor]:
    """Return the examples' gradients (b, ...) of a norm; Opacus knows none without a bias."""
    bias: nn.Parameter | None = layer.bias
    if bias is not None:
        of_both: Mapping[nn.Parameter, Tensor] = _opacus_norm(layer, activations, backprops)
        return of_both
    if not layer.weight.requires_grad:
        return {}
    normed = nn.functional.layer_norm(activations[0], layer.normalized_shape, eps=layer.eps)
    each = sum_over_all_but_batch_and_last_n(normed * backprops, layer.weight.dim())
    return {layer.weight: each}


_opacus = GradSampleModule.GRAD_SAMPLERS[nn.Embedding]
_opacus_norm = GradSampleModule.GRAD_SAMPLERS[nn.LayerNorm]
ExampleGradients.GRAD_SAMPLERS = {
    **GradSampleModule.GRAD_SAMPLERS,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
}


def unsupported(module: nn.Module) -> str:
    """Return the name and kind of a trained layer without known gradients of examples; or "".

    Of a layer that it does not know Opacus repeats the forward pass, with the first argument alone
    and without buffers. An embedding that computes otherwise, as of positions, needs more.
    """
    for name, layer in module.named_modules():
        is_trained = any(p.requires_grad for p in layer.parameters(recurse=False))
        is_supported = type(layer) in ExampleGradients.GRAD_SAMPLERS
        more = isinstance(layer, nn.Embedding) or any(True for _ in layer.buffers())
        if is_trained and not is_supported and more:
            return f"{name} ({type(layer).__name__})"
    return ""


def _remove(owner: Any, *names: str) -> None:
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)
