"""Placement of a trunk on several devices with accelerate's hooks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import dispatch_model, infer_auto_device_map
from accelerate.utils import check_device_map, get_balanced_memory

from flwr_splitmix.segments.language.parts import Trunk

PLANS = ("auto", "balanced")


def place_trunk(
    trunk: Trunk,
    *,
    device_map: str | Mapping[str, Any] = "auto",
    max_memory: Mapping[int | str, int | str] | None = None,
    offload_folder: str | Path | None = None,
) -> Trunk:
    """Spread a trunk's layers over devices; hidden states are moved along and back.

    Parameters
    ----------
    trunk
        Changed in place. Gradients cross between devices, except to layers on "disk" or on
        "cpu" beside an accelerator: these are loaded for each call and cannot be trained.
    device_map
        "auto" or "balanced", over the available devices; or a mapping from module names
        ("stack.layers.0", "" for all) to an accelerator's number, "cpu" or "disk".
    max_memory
        With "auto" or "balanced": bytes, or sizes such as "20GiB", by device.
    offload_folder
        Folder for the weights on "disk".

    Returns
    -------
    The trunk.

    Raises
    ------
    ValueError
        If modules are left without a device, "disk" is used without a folder, or `max_memory` is
        given with a mapping.
    """
    dispatch(trunk, devices_of(trunk, device_map, max_memory), offload_folder)
    return trunk


def devices_of(
    trunk: Trunk,
    device_map: str | int | Any | Mapping[str, Any],
    max_memory: Mapping[int | str, int | str] | None = None,
) -> dict[str, Any]:
    """Return the devices of all modules of a trunk; the trunk may be on the meta device.

    Raises
    ------
    ValueError
        If modules are left without a device, there is no such map, or `max_memory` is given with a
        mapping.
    """
    if isinstance(device_map, Mapping):
        if max_memory is not None:
            raise ValueError("max_memory is for the device maps 'auto' and 'balanced' only")
        check_device_map(trunk, dict(device_map))
        return dict(device_map)
    if device_map not in PLANS:
        raise ValueError(
            f"device_map is {device_map!r}; it must be 'auto', 'balanced' or a mapping"
        )
    whole = sorted({type(layer).__name__ for layer in trunk.stack.layers})
    limits = None if max_memory is None else dict(max_memory)
    limits = get_balanced_memory(trunk, max_memory=limits, no_split_module_classes=whole)
    return dict(infer_auto_device_map(trunk, max_memory=limits, no_split_module_classes=whole))


def is_placed(trunk: Trunk) -> bool:
    """Return whether `dispatch` has placed a trunk's modules."""
    return hasattr(trunk, "hf_device_map")


def dispatch(trunk: Trunk, devices: dict[str, Any], offload_folder: str | Path | None) -> None:
    """Place each of a trunk's modules on its device.

    Raises
    ------
    ValueError
        If "disk" is used without a folder.
    """
    if "disk" in devices.values() and offload_folder is None:
        raise ValueError("parts of the trunk go to 'disk'; that needs an offload_folder")
    dispatch_model(
        trunk,
        device_map=devices,
        offload_dir=None if offload_folder is None else str(offload_folder),
        skip_keys=["cache", "past_key_values"],
    )
