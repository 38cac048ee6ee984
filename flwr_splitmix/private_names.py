"""Private names of other packages for which there is no public form; they are used here only.

Each function says what it would do to lack the name: a release of the package may take it away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` was given, or any other module as it is.

    torch has no public way back. Without it a copy of a compiled module would be compiled again.
    """
    original: nn.Module = getattr(module, "_orig_mod", module)
    return original


def attention_on_cpu() -> tuple[Any, Any]:
    """Return torch's operators of attention on the CPU: forward and backward.

    `FlopCounterMode` takes operators, and `scaled_dot_product_attention` calls these. Without them
    attention would count for nothing before torch 2.15.
    """
    aten = torch.ops.aten
    return (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )


def made_from(made_by: type[Any], config: Any, **options: Any) -> Any:
    """Return a transformers model of a class and a configuration, with its weights initialised.

    The public `from_config` chooses the class itself, and would make another one where a class was
    derived from transformers'. The constructor takes neither a type of numbers nor an attention.

    Parameters
    ----------
    options
        Those of `AutoModel.from_config`: `dtype`, `attn_implementation`, `experts_implementation`.
    """
    return made_by._from_config(config, **options)


def attention_of(config: Any) -> str:
    """Return the attention that a transformers model has chosen, from its configuration.

    transformers has public ways to set it, and none to read it. Without it an exported model would
    be built with another attention than the parts, and fail where a model lacks that.
    """
    attention: str = config._attn_implementation
    return attention


def forget_experts(config: Any) -> None:
    """Take from a configuration, and those within, the way in which experts are computed.

    Some ways are kernels from the hub, thus code. A model's file may name one under the private
    name itself, which the public option of `AutoConfig.from_pretrained` leaves as it is.
    """
    config._experts_implementation = None


def initialise_own_weights(model: Any, module: nn.Module) -> None:
    """Initialise the weights that a module of a transformers model has itself, as the model would.

    The public `initialize_weights` initialises all modules. Without this one, weights would depend
    on which parts are built.
    """
    model._init_weights(module)


def patterns_of_unused_weights(model: Any) -> Sequence[str]:
    """Return patterns of names of weights that checkpoints hold and a transformers model leaves.

    Without them such checkpoints, which transformers reads, would be refused.
    """
    return model._keys_to_ignore_on_load_unexpected or ()


def used_once(weight: Any) -> bool:
    """Return whether Opacus has met a weight once in a batch's forward pass, and nowhere later.

    Without it the gradients of a tied embedding's two uses, which have other rows, would be added.
    """
    return weight._forward_counter == 1 and not hasattr(weight, "_current_grad_sample")


def forget_uses(parameter: Any) -> None:
    """Have Opacus count a parameter's uses anew, without gradients of a step that was left.

    Its public ways discard gradients of whole steps only. Without it the next batch would wait for
    a backward pass that never comes, and have no gradients.
    """
    parameter._forward_counter = 0
    if hasattr(parameter, "_current_grad_sample"):
        del parameter._current_grad_sample
