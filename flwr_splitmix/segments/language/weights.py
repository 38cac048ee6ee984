"""Weights for some modules of a model on the meta device: from files, else as initialised."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import initialization
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    rename_source_key,
)
from transformers.modeling_utils import LoadStateDictConfig

from flwr_splitmix.seeding import derive_seed, seeded_draws
from flwr_splitmix.segments.language.quiet import no_progress_bar
from flwr_splitmix.segments.language.sources import WeightFiles

NOT_WEIGHTS = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$")
"""Patterns of the names of buffers that older checkpoints contain."""


def load(
    model: Any, checkpoint: WeightFiles, wanted: Mapping[str, Any], new: Sequence[str]
) -> None:
    """Load some of a model's weights, converted from the checkpoint's layout to the model's.

    Only the files and tensors of these weights are read.

    Parameters
    ----------
    wanted
        Names of the weights to load, with their devices.
    new
        Prefixes of the names that the checkpoint may lack.

    Raises
    ------
    ValueError
        If weights are missing or have another shape, or the checkpoint has weights of a body that
        the model lacks.
    """
    conversions: list[Any] = list(get_model_conversion_mapping(model))
    keys, unexpected = _matching(model, checkpoint, conversions, wanted)
    if unexpected:
        raise ValueError(
            f"{checkpoint.name!r} has weights that its configuration does not: {_some(unexpected)}"
        )
    with ExitStack() as stack, no_progress_bar():
        folder = checkpoint.fetch(sorted({checkpoint.files[key] for key in keys}))
        files = {
            name: stack.enter_context(safe_open(folder / name, framework="pt"))
            for name in {checkpoint.files[key] for key in keys}
        }
        tensors = {key: files[checkpoint.files[key]].get_slice(key) for key in keys}
        info, _ = convert_and_load_state_dict_in_model(
            model,
            tensors,
            LoadStateDictConfig(
                dtype=model.dtype,
                device_map={"": "cpu", **wanted},
                weight_mapping=conversions,
            ),
        )
    if info.mismatched_keys:
        name, stored, needed = min(info.mismatched_keys)
        raise ValueError(
            f"{name} has shape {tuple(stored)} in {checkpoint.name!r} and {tuple(needed)} in the "
            "model that was asked for"
        )
    missing = {name for name in info.missing_keys & set(wanted) if not name.startswith(tuple(new))}
    if missing or info.conversion_errors:
        raise ValueError(
            f"{checkpoint.name!r} lacks weights: "
            f"{_some(missing | set(info.conversion_errors or ()))}"
        )
    for name in wanted:
        weight = model.get_parameter_or_buffer(name)
        if weight.device.type == "cpu":
            # A copy, because the memory-mapped file may be overwritten while the model is in use.
            weight.data = weight.data.clone()


def initialise(model: Any, modules: Sequence[tuple[str, nn.Module]], seed: int) -> None:
    """Initialise the weights of modules that are still on the meta device, as the model would.

    Each module has its own seed, so that its weights do not depend on which others are made.
    Buffers that no checkpoint contains, such as the frequencies of rotations, are computed.

    Parameters
    ----------
    modules
        Pairs of a name in the model and a module, children before their parents.
    """
    with torch.no_grad(), initialization.guard_torch_init_functions():
        for name, module in modules:
            for key, weight in module.named_parameters(recurse=False):
                if weight.is_meta:
                    made = nn.Parameter(torch.empty_like(weight, device="cpu"))
                    setattr(module, key, made.requires_grad_(weight.requires_grad))
            for key, buffer in module.named_buffers(recurse=False):
                if buffer.is_meta:
                    setattr(module, key, torch.empty_like(buffer, device="cpu"))
            with seeded_draws(torch.device("cpu"), derive_seed(seed, f"weights of {name}")):
                model._init_weights(module)


def _matching(
    model: Any, checkpoint: WeightFiles, conversions: Sequence[Any], wanted: Mapping[str, Any]
) -> tuple[list[str], set[str]]:
    """Return the checkpoint's keys of wanted weights, and its names that the model's body lacks."""
    own = model.state_dict()
    renamings = [rule for rule in conversions if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in conversions if isinstance(rule, WeightConverter)]
    body = {name for name, _ in model.base_model.named_children()}
    ignored = (*NOT_WEIGHTS, *(model._keys_to_ignore_on_load_unexpected or ()))
    keys, unexpected = [], set()
    for key in checkpoint.files:
        name, _ = rename_source_key(key, renamings, converters, model.base_model_prefix, own)
        if name not in own and key in own:
            name = key
        if name in wanted:
            keys.append(key)
        # The output layer of another task is allowed; weights of another body are not.
        top = name.removeprefix(f"{model.base_model_prefix}.").split(".")[0]
        if name not in own and top in body and not any(re.search(p, name) for p in ignored):
            unexpected.add(name)
    return keys, unexpected


def _some(names: set[str]) -> str:
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"
