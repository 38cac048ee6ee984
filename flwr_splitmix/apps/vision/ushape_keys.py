"""The strategies of the U shape that take images, and the keys that they do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr_splitmix.apps.ushape.needs import check_batch, check_learns, check_options
from flwr_splitmix.links.frames.wire import level_bits
from flwr_splitmix.methods import BY_NAME
from flwr_splitmix.strategies import USHAPE_STRATEGIES, UShapeStrategy
from flwr_splitmix.words import listed

if TYPE_CHECKING:
    from flwr_splitmix.apps.vision.config import VisionConfig

IMAGE_USHAPE: dict[str, type[UShapeStrategy]] = {
    name: kind for name, kind in USHAPE_STRATEGIES.items() if not kind.hiding.texts_only
}
"""Strategies of the U shape by name, without those that are about tokens."""

_NOISY = listed(name for name in IMAGE_USHAPE if BY_NAME[name].noise)

_LSHAPE: dict[str, tuple[object, str]] = {
    "server_update": ("sequential", ""),
    "sigma_s": (0.0, f"; {_NOISY} have noise of their own"),
    "sigma_y": (0.0, "; labels stay with the client"),
    "max_epsilon": (0.0, ""),
    "straggler": ("wait", ""),
    "group_order": ("random", ""),
    "grouping": ("random", ""),
    "micro_batches": (1, ""),
    "cut_at": ("", "; head-layers and tail-layers say where it cuts"),
    "embedding": ("patch", ""),
    "keep_mixtures": (0, ""),
    "link_via": ("", ""),
    "link_via_token": ("", ""),
}
"""Keys that all strategies of the L shape have: the value without effect, and what to add."""


def check_ushape(config: VisionConfig) -> None:
    """Raise ValueError if a key asks for something that no strategy of the U shape has."""
    for name, (without, more) in _LSHAPE.items():
        if (value := getattr(config, name)) != without:
            raise ValueError(
                f"{name.replace('_', '-')} is {value!r}, which is for strategies of the L shape; "
                f"use {without!r} with {config.strategy}{more}"
            )
    if level_bits(config.wire_dtype) == 4:
        raise ValueError(
            f"wire-dtype is {config.wire_dtype!r}, but clients of {config.strategy} send "
            "gradients, too; use 'int8' or a wider format with it"
        )
    check_learns(config.strategy, config.learns)
    check_batch(config.strategy, config.batch_size, texts=False)
    check_options(config.strategy, config.own_options())
