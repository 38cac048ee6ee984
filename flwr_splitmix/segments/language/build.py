"""Construction of some parts of a language model without allocating the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import initialization

from flwr_splitmix.private_names import made_from
from flwr_splitmix.segments.language.cut import LanguageCut
from flwr_splitmix.segments.language.cutting import PARTS, cut_sharing_tables, freeze_tables
from flwr_splitmix.segments.language.heads import check_heads
from flwr_splitmix.segments.language.layouts.families import cannot_make, model_class
from flwr_splitmix.segments.language.layouts.layout import Layout, Task
from flwr_splitmix.segments.language.parts import LanguageParts
from flwr_splitmix.segments.language.placement import PLANS, devices_of, dispatch
from flwr_splitmix.segments.language.sources import WeightFiles, open_source
from flwr_splitmix.segments.language.weights import check, initialise, load

log = logging.getLogger("flwr.splitmix")

Made = TypeVar("Made")

DTYPES = ("float32", "bfloat16", "float16", "float64")


def build_language_parts(
    source: Any,
    cut: LanguageCut,
    *,
    parts: Collection[str] = PARTS,
    task: Task = "generation",
    num_labels: int = 2,
    seed: int = 0,
    dtype: str = "float32",
    attn_implementation: str = "sdpa",
    gradient_checkpointing: bool = False,
    device_map: str | int | torch.device | Mapping[str, Any] | None = None,
    offload_folder: str | Path | None = None,
) -> LanguageParts:
    """Build parts of a transformers model; only these parts take memory.

    Parameters
    ----------
    source
        A transformers configuration object, for random weights; a local folder with config.json
        and safetensors files; the name of a decoder that `splitmix model fetch` has downloaded; or
        a name on the hub, from which only files with weights of the parts are downloaded.
    cut
        Numbers of layers in head and tail.
    parts
        The parts to build, of "head", "trunk" and "tail".
    task, num_labels
        "generation", or "classification" into `num_labels` classes, at least 2.
    seed
        Seed of random weights: all weights for a configuration, else the classifier's, if the
        checkpoint has none. A part's weights do not depend on which other parts are built.
    dtype
        Type of weights and hidden states: "float32", "bfloat16", "float16" or "float64".
    attn_implementation
        Attention by its name in transformers: "sdpa", "eager", "flash_attention_2", ...
    gradient_checkpointing
        Whether layers keep only their inputs for the backward pass, in training mode.
    device_map
        None: the CPU. A device: all parts are placed there. A mapping, "auto" or "balanced": the
        trunk is placed as by `place_trunk`, each weight loaded straight to its device; the other
        parts stay on the CPU.
    offload_folder
        Folder for the weights that a mapping puts on "disk".

    Returns
    -------
    LanguageParts
        In training mode; parts that were not requested are None.

    Raises
    ------
    ValueError
        If the model cannot be cut, or not with this `cut`, its layers cannot be computed, an
        argument is invalid, or the checkpoint's weights do not fit the configuration; the message
        says which.
    """
    model, built, checkpoint = blank_parts(
        source,
        cut,
        parts=parts,
        task=task,
        num_labels=num_labels,
        dtype=dtype,
        attn_implementation=attn_implementation,
        gradient_checkpointing=gradient_checkpointing,
    )
    everywhere, trunk_devices = _devices(built, device_map)
    modules = list(_modules(model, built))
    if checkpoint is not None:
        weight_devices = _weight_devices(
            model, modules, everywhere, _by_weight(built, trunk_devices)
        )
        load(model, checkpoint, weight_devices, _layout(built).new)
    initialise(model, modules, seed)
    model.tie_weights()
    freeze_tables(built)
    for part in (built.head, built.trunk, built.tail):
        if part is not None and (part is not built.trunk or trunk_devices is None):
            part.to(everywhere)
    if built.head is not None and built.tail is not None:
        model.tie_weights()  # again: a move between some devices makes new parameters
    if trunk_devices is not None and built.trunk is not None:
        dispatch(built.trunk, trunk_devices, offload_folder)
    return built


def open_skeleton(
    source: Any, cut: LanguageCut, *, task: Task, num_labels: int, dtype: str
) -> tuple[Any, LanguageParts]:
    """Return a model without weights, on the meta device, and its parts.

    Of a checkpoint's files on this machine, the headers are read: its weights would fit.

    Parameters
    ----------
    source, cut, task, num_labels, dtype
        As for `build_language_parts`.

    Raises
    ------
    ValueError
        As `build_language_parts`, but for weights that are NaN or infinite.
    """
    model, built, checkpoint = blank_parts(
        source, cut, task=task, num_labels=num_labels, dtype=dtype
    )
    if checkpoint is not None:
        weight_devices = _weight_devices(
            model, list(_modules(model, built)), torch.device("meta"), {}
        )
        check(model, checkpoint, weight_devices, _layout(built).new)
        model.tie_weights()
    freeze_tables(built)
    return model, built


def blank_parts(
    source: Any,
    cut: LanguageCut,
    *,
    parts: Collection[str] = PARTS,
    task: Task,
    num_labels: int,
    dtype: str,
    attn_implementation: str = "sdpa",
    gradient_checkpointing: bool = False,
) -> tuple[Any, LanguageParts, WeightFiles | None]:
    """Return a model on the meta device, its parts, which share tables, and its checkpoint.

    Raises
    ------
    ValueError
        As `build_language_parts`, but for the checkpoint's weights.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")
    config, checkpoint = open_source(source)
    if task == "classification":
        if num_labels < 2:
            raise ValueError(f"num_labels is {num_labels}; at least 2 are needed")
        config.num_labels = num_labels
    model = skeleton(model_class(config, task), config, dtype, attn_implementation)
    if gradient_checkpointing:
        checkpoint_layers(model)
    built = cut_sharing_tables(model, cut, parts=parts)
    if dtype in ("bfloat16", "float16") and not _layout(built).half:
        raise ValueError(
            f"dtype is {dtype!r}; transformers computes a model of type {config.model_type!r} in "
            "float32 and float64 only"
        )
    check_heads(built)
    if task == "generation" and built.trunk is not None:  # one process has it: one warning
        _warn_of_router_loss(config)
    return model, built, checkpoint


def _warn_of_router_loss(config: Any) -> None:
    """Warn if a configuration asks for a loss of routers, whose logits no part passes on."""
    weight = getattr(config, "router_aux_loss_coef", 0)
    if getattr(config, "output_router_logits", False) and weight:
        log.warning(
            "the model's configuration asks for its routers' loss (output_router_logits, with "
            "router_aux_loss_coef %g), which its parts do not compute: it is trained without, and "
            "some experts may be used less and less; if that is meant, set output_router_logits to "
            "false",
            weight,
        )


def skeleton(made_by: type[Any], config: Any, dtype: str, attn_implementation: str) -> Any:
    """Return a model without weights, on the meta device.

    Where a model has no "sdpa", its attention is "eager".

    Raises
    ------
    ValueError
        If transformers makes no model of this configuration.
    """
    # The fused matrix product for mixtures of experts does not support float64.
    experts = {"experts_implementation": "eager"} if dtype == "float64" else {}

    def made(attention: str) -> Any:
        with torch.device("meta"), initialization.no_init_weights():
            return made_from(
                made_by,
                config,
                dtype=getattr(torch, dtype),
                attn_implementation=attention,
                **experts,
            )

    try:
        model = with_attention(made, attn_implementation)
    except Exception as error:
        if attn_implementation not in ("sdpa", "eager"):  # the package of another may be missing
            raise
        raise cannot_make(made_by, config, error) from error
    model.tie_weights()
    return model


def with_attention(make: Callable[[str], Made], attn_implementation: str = "sdpa") -> Made:
    """Return what `make` makes with an attention; where a model has no "sdpa", with "eager"."""
    try:
        return make(attn_implementation)
    except ValueError as error:
        if attn_implementation != "sdpa" or "scaled_dot_product_attention" not in str(error):
            raise
        return make("eager")


def checkpoint_layers(model: Any) -> None:
    """Make the layers of a transformers model keep only their inputs for the backward pass.

    transformers 5.23 renamed the method that does this.
    """
    name = "activation_checkpointing_enable"
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    # The method makes even frozen embeddings require gradients, which only reentrant
    # checkpointing needs.
    model.disable_input_require_grads()


def _layout(built: LanguageParts) -> Layout:
    return next(p.layout for p in (built.head, built.trunk, built.tail) if p is not None)


def _devices(
    built: LanguageParts, device_map: str | int | torch.device | Mapping[str, Any] | None
) -> tuple[torch.device, dict[str, Any] | None]:
    """Return the device of whole parts, and the devices of the trunk's modules if it is spread."""
    if isinstance(device_map, Mapping) or device_map in PLANS:
        spread = None if built.trunk is None else devices_of(built.trunk, device_map)
        return torch.device("cpu"), spread
    return torch.device("cpu" if device_map is None else device_map), None


def _modules(model: Any, built: LanguageParts) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of the built parts, with their names in the model, children first.

    A tied output layer needs the token embedding even if the head is not built.
    """
    names = {id(module): name for name, module in model.named_modules()}
    needed: list[nn.Module] = [p for p in (built.head, built.trunk, built.tail) if p is not None]
    if built.tied and built.tail is not None:
        needed.append(model.get_input_embeddings())
    yielded_ids: set[int] = set()
    for part in needed:
        for module in _children_first(part):
            if id(module) not in yielded_ids:
                yielded_ids.add(id(module))
                yield names.get(id(module), ""), module


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _children_first(child)
    yield module


def _weight_devices(
    model: Any,
    modules: list[tuple[str, nn.Module]],
    everywhere: torch.device,
    placements: Mapping[int, Any],
) -> dict[str, Any]:
    """Return all weights to load, by their names in the model, with their devices."""
    tied = set(model.get_expanded_tied_weights_keys(all_submodels=True))
    weight_devices = {}
    for name, module in modules:
        for key, weight in module.state_dict(keep_vars=True).items():
            if name and "." not in key and f"{name}.{key}" not in tied:
                weight_devices[f"{name}.{key}"] = placements.get(id(weight), everywhere)
    return weight_devices


def _by_weight(built: LanguageParts, devices: Mapping[str, Any] | None) -> dict[int, Any]:
    """Return the device of each weight of the trunk; weights on "disk" are read to the CPU."""
    if devices is None or built.trunk is None:
        return {}
    places = {}
    for name, weight in built.trunk.state_dict(keep_vars=True).items():
        owner = max((o for o in devices if o == "" or name.startswith(f"{o}.")), key=len)
        places[id(weight)] = "cpu" if devices[owner] == "disk" else devices[owner]
    return places
