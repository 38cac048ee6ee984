"""Hooks by which Opacus computes gradients of each example, and a check of what it takes for one.

Opacus, which this module imports, is an extra.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from flwr_splitmix.hiding.example_gradients import ExampleGradients, SampleError, of_all_rows
from flwr_splitmix.hiding.unfit import REMEDY, UnfitError
from flwr_splitmix.scoring.texts import checked_tail
from flwr_splitmix.words import counted

_TRIAL_SIZES = (2, 3)
"""Numbers of examples in the two passes of a trial: no dimension of an input is equal to both."""

_OF_A_HOOK = "BackwardHookFunction"
"""In torch's error where the tensors that a hook has wrapped are changed in place."""

_OWN_PART, _LARGEST_PART = 1e-2, 1e-4
"""By which parts of its own norm and of the largest one a gradient may be off by rounding."""


class WatchedRows:
    """Head and tail while they have Opacus' hooks, and those that check what it takes for rows.

    Parameters
    ----------
    ends
        Head and tail as one module.

    Attributes
    ----------
    size
        Number of examples in the batch; 0 before the first.
    gradients
        Opacus' side.
    """

    def __init__(self, ends: nn.ModuleDict) -> None:
        self.size = 0
        # Of some layers Opacus runs copies, example by example, which must not have these checks.
        self.gradients = ExampleGradients(ends, strict=False)
        self._hooks: list[RemovableHandle] = []
        for name, part in ends.named_modules():
            if isinstance(part, nn.Embedding):
                self._hooks.append(part.register_forward_pre_hook(self._for_each_text))
            elif next(part.parameters(recurse=False), None) is not None:
                check = partial(self._check_rows, name)
                self._hooks.append(part.register_forward_pre_hook(check))

    def remove(self) -> None:
        """Remove the hooks from head and tail, which may be used elsewhere."""
        while self._hooks:
            self._hooks.pop().remove()
        self.gradients.forget()
        self.gradients.to_standard_module()

    def _for_each_text(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        """Look up positions for each text, if the model does it once per batch."""
        shared = module.training and torch.is_grad_enabled() and len(inputs[0]) == 1 < self.size
        return inputs[0].expand(self.size, -1) if shared else None

    def _check_rows(self, name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Refuse a trained layer that is called once for all examples.

        Opacus would take its gradient for the first example's, and clip it with that one's.

        Raises
        ------
        UnfitError
            If its first input does not have a row for each example; the message names the layer.
        """
        if not (self.size and module.training and torch.is_grad_enabled()):
            return
        first_input = inputs[0] if inputs else None
        learns = any(p.requires_grad for p in module.parameters(recurse=False))
        if learns and isinstance(first_input, Tensor) and len(first_input) != self.size:
            raise UnfitError(
                f"DP-SGD needs a gradient for each example, but {name} ({type(module).__name__}) "
                f"is called with {counted(len(first_input), 'row')} for "
                f"{counted(self.size, 'example')}; take another model"
            )


def try_gradients(ends: nn.ModuleDict, inputs: Tensor, mask: Tensor, *, single: bool) -> None:
    """Refuse head and tail if gradients of single examples are unknown, or not those of the batch.

    They are run on two examples and on three. A layer whose first dimension differs from that of
    the examples, such as the tokens, shows in one of them, whatever the batch size will be. Then
    the gradients of examples must add up to that of the batch, with random gradients at the outputs
    of both.

    Parameters
    ----------
    ends
        Copies of head and tail, whose gradients are lost.
    inputs, mask
        Examples (b, ...) and their mask, any number: they are repeated or cut as needed.
    single
        Whether batches have one example, whose gradient is the batch's; then the trial has one.

    Raises
    ------
    UnfitError
        With the layer or the weights, except where a change in place hinders the hooks.
    """
    ends.train()
    watched = WatchedRows(ends)
    try:
        for size in (1,) if single else _TRIAL_SIZES:
            watched.gradients.forget()
            watched.size = size
            rows = torch.arange(size, device=inputs.device) % len(inputs)
            hidden = ends["head"](inputs[rows], mask[rows])
            states = torch.randn_like(hidden).requires_grad_()
            outputs = [hidden, checked_tail(ends["tail"](states, mask[rows]))]
        learned = [each for each in outputs if each.requires_grad]
        mean = sum((each * torch.randn_like(each)).sum() for each in learned) / watched.size
        if learned:
            mean.backward()
        _check_sums(watched)
    except SampleError as error:
        name = next(n for n, layer in ends.named_modules() if layer is error.layer)
        raise UnfitError(
            f"DP-SGD needs a gradient for each example, which Opacus does not compute for "
            f"{name} ({type(error.layer).__name__}); {REMEDY}"
        ) from error
    except RuntimeError as error:
        if _OF_A_HOOK not in str(error):
            raise
        raise UnfitError(
            "DP-SGD needs a gradient for each example, and Opacus' hooks fail where head or tail "
            f"changes in place what a layer gets or returns; {REMEDY}"
        ) from error
    finally:
        watched.remove()


def _check_sums(watched: WatchedRows) -> None:
    """Raise UnfitError if the examples' gradients of weights do not add up to the batch's."""
    weights = {n: p for n, p in watched.gradients.named_parameters() if p.requires_grad}
    gradients = {n: p.grad for n, p in weights.items() if p.grad is not None}
    norms = {name: float(gradient.norm()) for name, gradient in gradients.items()}
    largest = max(norms.values(), default=0.0)
    if not torch.tensor(largest).isfinite():
        raise ArithmeticError("gradients are not finite")
    for name, gradient in gradients.items():
        parameter: Any = weights[name]
        samples = parameter.grad_sample
        whole = isinstance(samples, Tensor) and len(samples) == watched.size
        total = of_all_rows(parameter, samples.sum(0) / watched.size) if whole else 0 * gradient
        off = float((total - gradient).norm())
        if off > max(_OWN_PART * norms[name], _LARGEST_PART * largest):
            raise UnfitError(
                "DP-SGD needs a gradient for each example, and those that Opacus computes for "
                f"{name.removeprefix('_module.')} do not add up to the batch's: it is used outside "
                f"of its own layer, or with more than the layer's first input; {REMEDY}"
            )
