"""The strategies of the U shape that take images, and the keys that they do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr_splitmix.apps.ushape.needs import check_batch, check_learns
from flwr_splitmix.hiding import DPForward
from flwr_splitmix.limits import LARGEST_SIGMA
from flwr_splitmix.links.frames.wire import level_bits
from flwr_splitmix.strategies import USHAPE_STRATEGIES, UShapeStrategy

if TYPE_CHECKING:
    from flwr_splitmix.apps.vision.config import VisionConfig

IMAGE_USHAPE: dict[str, type[UShapeStrategy]] = {
    name: kind for name, kind in USHAPE_STRATEGIES.items() if not kind.hiding.texts_only
}
"""Strategies of the U shape by name, without those that are about tokens."""

_LSHAPE: dict[str, tuple[object, str]] = {
    "server_update": ("sequential", ""),
    "sigma_s": (0.0, "; DPForwardSL and DPSGDSL have noise of their own"),
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
    """Raise ValueError if a key asks for what the strategy, of the U shape, does not have."""
    for name, (without, more) in _LSHAPE.items():
        if (value := getattr(config, name)) != without:
            raise ValueError(
                f"{name.replace('_', '-')} is {value!r}, which is for strategies of the L shape; "
                f"allowed with {config.strategy} is {without!r}{more}"
            )
    if level_bits(config.wire_dtype) == 4:
        raise ValueError(
            f"wire-dtype is {config.wire_dtype!r}, but clients of {config.strategy} send "
            "gradients, too; allowed with it are 'int8' and wider formats"
        )
    check_learns(config.strategy, config.learns)
    check_batch(config.strategy, config.batch_size, texts=False)
    if issubclass(IMAGE_USHAPE[config.strategy].hiding, DPForward):
        _check_forward(config)


def _check_forward(config: VisionConfig) -> None:
    sigma = DPForward(**config.own_options()).sigma
    if sigma > LARGEST_SIGMA:
        raise ValueError(
            f"clip-norm is {config.clip_norm:g}, epsilon {config.epsilon:g} and releases "
            f"{config.releases}, which needs noise of standard deviation {sigma:.3g}, and servers "
            f"refuse such numbers; allowed is at most {LARGEST_SIGMA:g}: take a smaller clip-norm, "
            "a larger epsilon or fewer releases"
        )
