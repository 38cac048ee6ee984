"""Weights for some modules of a model on the meta device: from files, else as initialised."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import initialization
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    rename_source_key,
)
from transformers.modeling_utils import LoadStateDictConfig

from flwr_splitmix.files.reading import check_regular
from flwr_splitmix.finite import all_finite
from flwr_splitmix.private_names import initialise_own_weights, patterns_of_unused_weights
from flwr_splitmix.seeding import derive_seed, seeded_draws
from flwr_splitmix.segments.language.quiet import no_progress_bar
from flwr_splitmix.segments.language.sources import CONFIG, WeightFiles, readable
from flwr_splitmix.words import listed

log = logging.getLogger("flwr.splitmix")

NOT_WEIGHTS = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$")
"""Patterns of the names of buffers that older checkpoints contain."""

FLOATING = ("F64", "F32", "F16", "BF16")
"""Types of weights in the words of safetensors; others, 8 bits included, lack a scale beside."""


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
        If a file cannot be read, weights are missing, have another shape, are not floating-point
        numbers or are NaN or infinite, or the checkpoint has weights of a body that the model
        lacks.
    """
    conversions: list[Any] = list(get_model_conversion_mapping(model))
    names = _matching(model, checkpoint, conversions, wanted)
    folder = checkpoint.fetch(sorted({checkpoint.files[key] for key in names}))
    with ExitStack() as stack, no_progress_bar():
        stored = _opened(stack, model, checkpoint, folder, names)
        info = _converted(model, stored, wanted, conversions)
    _check_loaded(info, wanted, checkpoint.name, new)
    for name in wanted:
        weight = model.get_parameter_or_buffer(name)
        _check_finite(name, weight, checkpoint.name)
        if weight.device.type == "cpu":
            # A copy, because the memory-mapped file may be overwritten while the model is in use.
            weight.data = weight.data.clone()


def check(model: Any, checkpoint: WeightFiles, wanted: Collection[str], new: Sequence[str]) -> None:
    """Check what `load` would load, by the headers of the files alone; the model is without memory.

    Of a checkpoint on the hub, weights in files that are not on this machine are not checked.

    Parameters
    ----------
    model
        On the meta device. Its weights are replaced; tied ones must be tied again.
    wanted, new
        As for `load`.

    Raises
    ------
    ValueError
        As `load`, but for numbers that are NaN or infinite.
    """
    conversions: list[Any] = list(get_model_conversion_mapping(model))
    names = _matching(model, checkpoint, conversions, wanted)
    folder = checkpoint.fetch([CONFIG])
    files = {checkpoint.files[key] for key in names}
    absent = {f for f in files if not (folder / f).exists()} if checkpoint.on_hub else set()
    # Several tensors may make one weight, which is checked if all of them are here.
    unknown = {name for key, name in names.items() if checkpoint.files[key] in absent}
    names = {key: name for key, name in names.items() if name not in unknown}
    with ExitStack() as stack, no_progress_bar():
        stored = _opened(stack, model, checkpoint, folder, names)
        blank = {
            key: torch.empty(tensor.get_shape(), dtype=model.dtype, device="meta")
            for key, tensor in stored.items()
        }
        try:
            info = _converted(model, blank, dict.fromkeys(wanted, "meta"), conversions)
        except NotImplementedError:  # some conversions need numbers
            log.debug("weights were not tried without memory", exc_info=True)
            return
    # One tensor may also make several weights, of which only the first is in `unknown`.
    _check_loaded(info, () if unknown else wanted, checkpoint.name, new)


def check_types(model: Any, folder: Path) -> None:
    """Check that all files of weights in a folder have floating-point numbers for a model.

    Raises
    ------
    ValueError
        If one has others, cannot be read, or has weights of a body that the model lacks.
    """
    conversions = get_model_conversion_mapping(model)
    for file in sorted(folder.glob("*.safetensors")):
        with readable(folder, file.name), safe_open(file, framework="pt") as tensors:
            files = dict.fromkeys(tensors.keys(), file.name)
        checkpoint = WeightFiles(str(folder), files, lambda _: folder)
        with ExitStack() as stack:
            names = _matching(model, checkpoint, conversions, model.state_dict())
            _opened(stack, model, checkpoint, folder, names)


def _opened(
    stack: ExitStack,
    model: Any,
    checkpoint: WeightFiles,
    folder: Path,
    names: Mapping[str, str],
) -> dict[str, Any]:
    """Return a checkpoint's tensors, not yet read, by key; refuse types that are not FLOATING.

    Parameters
    ----------
    stack
        Closes the files.
    names
        The model's names by the keys of the tensors.
    """
    state = model.state_dict()
    files: dict[str, Any] = {}
    tensors = {}
    for key, name in names.items():
        file = checkpoint.files[key]
        with readable(checkpoint.name, file):
            if file not in files:
                check_regular(folder / file)
                files[file] = stack.enter_context(safe_open(folder / file, framework="pt"))
            tensors[key] = files[file].get_slice(key)
            kind = tensors[key].get_dtype()
        if state[name].is_floating_point() and kind not in FLOATING:
            raise ValueError(
                f"{file} of {checkpoint.name!r} has {key} as numbers of type {kind}, as of "
                "quantized weights; take a checkpoint whose weights are floating-point numbers "
                f"({', '.join(FLOATING)})"
            )
    return tensors


def _converted(
    model: Any, stored: dict[str, Any], wanted: Mapping[str, Any], conversions: list[Any]
) -> Any:
    """Set a model's weights to those stored; return transformers' report."""
    info, _ = convert_and_load_state_dict_in_model(
        model,
        stored,
        LoadStateDictConfig(
            dtype=model.dtype, device_map={"": "cpu", **wanted}, weight_mapping=conversions
        ),
    )
    return info


def _check_loaded(info: Any, wanted: Collection[str], source: str, new: Sequence[str]) -> None:
    """Raise ValueError if weights had another shape, or if wanted ones are missing."""
    if info.mismatched_keys:
        name, stored, needed = min(info.mismatched_keys)
        raise _other_shape(name, stored, needed, source, new)
    missing = {name for name in info.missing_keys & set(wanted) if not name.startswith(tuple(new))}
    if missing or info.conversion_errors:
        lacking = sorted(missing | set(info.conversion_errors or ()))
        raise ValueError(f"{source!r} lacks weights: {listed(lacking, most=3)}")


def _check_finite(name: str, weight: Tensor, source: str) -> None:
    """Raise ValueError if a loaded weight is NaN or infinite; a constant may be, as in a mask."""
    if not weight.is_floating_point() or weight.is_meta or all_finite([weight.detach()]):
        return
    if not isinstance(weight, nn.Parameter) and not bool(weight.isnan().any()):
        return
    dtype = str(weight.dtype).removeprefix("torch.")
    small = ", or a dtype that holds larger numbers" if weight.dtype == torch.float16 else ""
    raise ValueError(
        f"{name} in {source!r} has NaN or infinite numbers as {dtype}; take an undamaged "
        f"checkpoint of a model that has not diverged{small}"
    )


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
                    parameter = nn.Parameter(torch.empty_like(weight, device="cpu"))
                    setattr(module, key, parameter.requires_grad_(weight.requires_grad))
            for key, buffer in module.named_buffers(recurse=False):
                if buffer.is_meta:
                    setattr(module, key, torch.empty_like(buffer, device="cpu"))
            with seeded_draws(torch.device("cpu"), derive_seed(seed, f"weights of {name}")):
                initialise_own_weights(model, module)


def _matching(
    model: Any, checkpoint: WeightFiles, conversions: Sequence[Any], wanted: Collection[str]
) -> dict[str, str]:
    """Return the names of wanted weights by the checkpoint's keys.

    Raises
    ------
    ValueError
        If the checkpoint has weights of a body that the model lacks.
    """
    state = model.state_dict()
    renamings = [rule for rule in conversions if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in conversions if isinstance(rule, WeightConverter)]
    body = {name for name, _ in model.base_model.named_children()}
    ignored = (*NOT_WEIGHTS, *patterns_of_unused_weights(model))
    names, unexpected = {}, set()
    for key in checkpoint.files:
        name, _ = rename_source_key(key, renamings, converters, model.base_model_prefix, state)
        if name not in state and key in state:
            name = key
        if name in wanted:
            names[key] = name
        # The output layer of another task is allowed; weights of another body are not.
        top = name.removeprefix(f"{model.base_model_prefix}.").split(".")[0]
        if name not in state and top in body and not any(re.search(p, name) for p in ignored):
            unexpected.add(name)
    if unexpected:
        raise ValueError(
            f"{checkpoint.name!r} has weights that its configuration does not: "
            f"{listed(sorted(unexpected), most=3)}"
        )
    return names
