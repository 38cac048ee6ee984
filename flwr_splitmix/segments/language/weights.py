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

from flwr_splitmix.files import check_regular
from flwr_splitmix.seeding import derive_seed, seeded_draws
from flwr_splitmix.segments.language.quiet import no_progress_bar
from flwr_splitmix.segments.language.sources import WeightFiles, readable

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
        If a file cannot be read, weights are missing or have another shape, or the checkpoint has
        weights of a body that the model lacks.
    """
    conversions: list[Any] = list(get_model_conversion_mapping(model))
    names, unexpected = _matching(model, checkpoint, conversions, wanted)
    keys = list(names)
    if unexpected:
        raise ValueError(
            f"{checkpoint.name!r} has weights that its configuration does not: {_some(unexpected)}"
        )
    with ExitStack() as stack, no_progress_bar():
        folder = checkpoint.fetch(sorted({checkpoint.files[key] for key in keys}))
        files: dict[str, Any] = {}
        tensors = {}
        for key in keys:
            name = checkpoint.files[key]
            with readable(checkpoint.name, name):
                if name not in files:
                    check_regular(folder / name)
                    files[name] = stack.enter_context(safe_open(folder / name, framework="pt"))
                tensors[key] = files[name].get_slice(key)
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
        raise _other_shape(name, stored, needed, checkpoint.name, new)
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


def check_output(model: Any, checkpoint: WeightFiles, new: Sequence[str]) -> None:
    """Check that the shapes of a checkpoint's output layer, if it has one, are the model's.

    Only headers of files that are on this machine are read.

    Parameters
    ----------
    new
        As for `load`.

    Raises
    ------
    ValueError
        If they are others, or a file cannot be read.
    """
    wanted = dict.fromkeys(name for name in model.state_dict() if name.startswith(tuple(new)))
    names, _ = _matching(model, checkpoint, get_model_conversion_mapping(model), wanted)
    if not names:
        return
    folder = checkpoint.fetch(["config.json"])
    for key, name in names.items():
        file = folder / checkpoint.files[key]
        if not file.is_file():
            continue
        with (
            readable(checkpoint.name, file.name),
            safe_open(file, framework="pt") as tensors,
        ):
            stored = tensors.get_slice(key).get_shape()
        needed = model.get_parameter_or_buffer(name).shape
        if tuple(stored) != tuple(needed):
            raise _other_shape(name, stored, needed, checkpoint.name, new)


def _other_shape(
    name: str, stored: Sequence[int], needed: Sequence[int], source: str, new: Sequence[str]
) -> ValueError:
    """Return the error of a weight of another shape, with the remedy if it is the classifier's."""
    remedy = ""
    if name.startswith(tuple(new)) and tuple(stored[1:]) == tuple(needed[1:]):
        remedy = (
            f": its classifier has {stored[0]} classes, but num_labels is {needed[0]}; take "
            f"num_labels={stored[0]}, or for a new classifier a folder without one, as written by "
            "AutoModel.from_pretrained(...).save_pretrained(...)"
        )
    return ValueError(
        f"{name} has shape {tuple(stored)} in {source!r} and {tuple(needed)} in the model that was "
        f"asked for{remedy}"
    )


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
) -> tuple[dict[str, str], set[str]]:
    """Return the names of wanted weights by the checkpoint's keys, and what the body lacks."""
    own = model.state_dict()
    renamings = [rule for rule in conversions if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in conversions if isinstance(rule, WeightConverter)]
    body = {name for name, _ in model.base_model.named_children()}
    ignored = (*NOT_WEIGHTS, *(model._keys_to_ignore_on_load_unexpected or ()))
    names, unexpected = {}, set()
    for key in checkpoint.files:
        name, _ = rename_source_key(key, renamings, converters, model.base_model_prefix, own)
        if name not in own and key in own:
            name = key
        if name in wanted:
            names[key] = name
        # The output layer of another task is allowed; weights of another body are not.
        top = name.removeprefix(f"{model.base_model_prefix}.").split(".")[0]
        if name not in own and top in body and not any(re.search(p, name) for p in ignored):
            unexpected.add(name)
    return names, unexpected


def _some(names: set[str]) -> str:
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"
