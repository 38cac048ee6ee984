"""Where the server's trunk goes: to one device, or over several GPUs where one is too small."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from flwr_splitmix.apps.language.advice import open_run_model
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.model import unusable
from flwr_splitmix.apps.run_config import ConfigError
from flwr_splitmix.segments.language.placement import devices_of

log = logging.getLogger("flwr.splitmix")

BALANCED = "balanced"
"""The device that is all accelerators together."""

TRAINED = 4
"""Times its weights that a trained trunk takes: they, their gradients, and AdamW's two moments."""

SHARE = 0.8
"""Of a GPU's free memory; the rest is for hidden states and what a layer keeps for its backward."""


def trunk_devices(
    config: LanguageConfig, free: Sequence[int] | None = None
) -> str | dict[str, Any] | None:
    """Return the trunk's `device_map`; None leaves it on one device, as `device` says.

    With "auto" and several GPUs, a trunk that the first cannot train alone is spread over all of
    them. None of it goes to the processor's memory or to disk: such layers cannot be trained.

    Parameters
    ----------
    free
        Bytes of memory that each GPU has free; None asks them.

    Raises
    ------
    ConfigError
        If all of them together are too small, or the model cannot be used.
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
    # Adapters are small, and freeze all else.
    times = 1 if "trunk" in config.adapted else TRAINED
    if times * weights <= SHARE * free[0]:
        return None
    limits: dict[int | str, int | str] = {
        index: int(SHARE * nbytes / times) for index, nbytes in enumerate(free)
    }
    devices = devices_of(trunk, BALANCED, limits)
    if {"cpu", "disk"} & set(devices.values()):
        raise ConfigError(
            f"run-config: the trunk needs {_gib(times * weights)} to be trained, and the "
            f"{len(free)} GPUs have {', '.join(map(_gib, free))} free, of which {SHARE:.0%} can be "
            "used; use more or larger GPUs, adapters (lora-rank, lora-parts), a smaller dtype, or "
            "give clients more layers (head-layers, tail-layers)"
        )
    log.info("the trunk's layers are spread over %d GPUs", len(set(devices.values())))
    return devices


def _free_memory() -> list[int]:
    return [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.1f} GiB"
