"""Low-rank adapters of one part, added, read and merged with peft."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from flwr_splitmix.seeding import derive_seed, seeded_draws
from flwr_splitmix.segments.language.parts import Part


def add_lora(
    part: Part,
    rank: int = 8,
    alpha: float = 16,
    dropout: float = 0.0,
    targets: Sequence[str] | None = None,
    *,
    seed: int = 0,
) -> None:
    """Add adapters W + (alpha / rank) B A to a part's linear layers and freeze all else in it.

    B starts at zero, so the part's outputs do not change. A depends only on the seed and the kind
    of part, so all clients start with the same. An output layer that is tied to the head's
    embedding is frozen with it, in both parts.

    Parameters
    ----------
    part
        Head, trunk or tail; changed in place.
    targets
        Names of linear layers, such as "q_proj"; None for the family's default: queries and
        values, for GPT-2 also keys.

    Raises
    ------
    ValueError
        If the part already has adapters, has no such layer, or a number is out of range.

    Source: LoRA (Hu et al., 2021), section 4.1.
    """
    if rank < 1 or not 0 <= dropout < 1:
        raise ValueError(
            f"rank is {rank} and dropout {dropout}; expected rank >= 1 and 0 <= dropout < 1"
        )
    name = type(part).__name__.lower()
    if has_lora(part):
        raise ValueError(f"the {name} has adapters already; merge_lora(part) first")
    target_names = list(part.layout.lora_targets if targets is None else targets)
    if not has_targets(part, target_names):
        raise ValueError(
            f"the {name} has no layer named {', '.join(target_names)} to adapt; it has "
            f"{_linear(part)}"
        )
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        lora_dropout=dropout,
        target_modules=target_names,
        fan_in_fan_out=part.layout.transposed,
    )
    with seeded_draws(torch.device("cpu"), derive_seed(seed, f"adapters of the {name}")):
        inject_adapter_in_model(config, part)
    part.train(part.training)


def has_targets(part: Part, targets: Sequence[str]) -> bool:
    """Return whether a part has layers of these names, to which adapters can be added."""
    return any(f".{key}".endswith(f".{t}") for key, _ in part.named_modules() for t in targets)


def has_lora(part: nn.Module) -> bool:
    """Return whether a part has adapters."""
    return any(isinstance(module, BaseTunerLayer) for module in part.modules())


def trainable_state(part: nn.Module) -> dict[str, Tensor]:
    """Return the trained tensors of a part by name: its adapters, or all of its weights.

    They share memory with the part; `part.load_state_dict(state, strict=False)` sets them.
    """
    return {
        name: weight.detach() for name, weight in part.named_parameters() if weight.requires_grad
    }


def merge_lora(part: nn.Module) -> None:
    """Merge a part's adapters into its weights and remove them; all weights are trainable again."""
    for parent in list(part.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BaseTunerLayer):
                child.merge()
                setattr(parent, name, child.get_base_layer())
    if hasattr(part, "peft_config"):
        del part.peft_config
    part.requires_grad_(True)


def _linear(part: nn.Module) -> str:
    names = {
        name.split(".")[-1]
        for name, module in part.named_modules()
        if getattr(module, "weight", None) is not None and module.weight.ndim == 2
    }
    return ", ".join(sorted(names)) or "none"
