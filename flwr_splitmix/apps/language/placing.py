"""Placement of the server's trunk: on one device, or over several GPUs if one is too small."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.language.advice import open_run_model
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.model import unusable
from flwr_splitmix.segments.language.placement import devices_of
from flwr_splitmix.words import gib

log = logging.getLogger("flwr.splitmix")

BALANCED = "balanced"
"""Value of `device` for all accelerators together."""

MEMORY_FACTOR = 4
"""Memory of a trained trunk, as a multiple of its weights': with gradients and AdamW's moments."""

USABLE_SHARE = 0.8
"""Share of a GPU's free memory for these; the rest is for hidden states and activations."""


def trunk_devices(
    config: LanguageConfig, free: Sequence[int] | None = None
) -> str | dict[str, Any] | None:
    """Return the trunk's `device_map`, or None to place it on the one device that `device` names.

    If `device` is "auto" and there are several GPUs, a trunk too large to be trained on the first
    is spread over all. No layer is placed on CPU or disk, where it could not be trained.

    Parameters
    ----------
    free
        Free memory of each GPU in bytes; None to query the GPUs.

    Raises
    ------
    ConfigError
        If all GPUs together are too small, or the model cannot be used.
    """
    if config.device == BALANCED:
        return BALANCED
    if config.device != "auto":
        return None
    free = _free_memory() if free is None else free
    if len(free) < 2:
        return None
    try:
        _, parts = open_run_model(config)
    except (OSError, ValueError) as error:
        raise unusable(config, error) from error
    trunk = parts.trunk
    assert trunk is not None
    weights = sum(weight.nbytes for weight in trunk.parameters())
    # With adapters, which are small, all weights are frozen.
    times = 1 if "trunk" in config.adapted else MEMORY_FACTOR
    if times * weights <= USABLE_SHARE * free[0]:
        return None
    limits: dict[int | str, int | str] = {
        index: int(USABLE_SHARE * nbytes / times) for index, nbytes in enumerate(free)
    }
    devices = devices_of(trunk, BALANCED, limits)
    if {"cpu", "disk"} & set(devices.values()):
        raise ConfigError(
            f"run-config: the trunk needs {gib(times * weights)} to be trained, and the "
            f"{len(free)} GPUs have {', '.join(map(gib, free))} free, of which "
            f"{USABLE_SHARE:.0%} can be used; use more or larger GPUs, adapters (lora-rank, "
            "lora-parts), a smaller dtype, or give clients more layers (head-layers, tail-layers)"
        )
    log.info("the trunk's layers are spread over %d GPUs", len(set(devices.values())))
    return devices


def _free_memory() -> list[int]:
    return [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]
