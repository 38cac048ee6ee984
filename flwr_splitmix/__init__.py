"""Split learning for Flower.

Each client keeps the lower segment of a model; the ServerApp holds the upper segment and the
mixer. Flower messages carry the rounds, a link carries the steps. Strategies are in
`flwr_splitmix.strategies`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flwr_splitmix.threads import wait_passively

if TYPE_CHECKING:
    __version__: str
    from flwr_splitmix.client_app import SplitClientApp
    from flwr_splitmix.clients import PrivacyBudget, SplitClient, UShapeClient
    from flwr_splitmix.links import AutoLink, LocalLink, MixerLink, RayLink, StreamLink
    from flwr_splitmix.optimizers import adamw
    from flwr_splitmix.privacy import GaussianNoise
    from flwr_splitmix.runs import Run
    from flwr_splitmix.schedule import WarmupCosine
    from flwr_splitmix.segments import split_vision_model

__all__ = [
    "AutoLink",
    "GaussianNoise",
    "LocalLink",
    "MixerLink",
    "PrivacyBudget",
    "RayLink",
    "Run",
    "SplitClient",
    "SplitClientApp",
    "StreamLink",
    "UShapeClient",
    "WarmupCosine",
    "__version__",
    "adamw",
    "split_vision_model",
]

_HOMES = {
    "AutoLink": "links",
    "GaussianNoise": "privacy",
    "LocalLink": "links",
    "MixerLink": "links",
    "PrivacyBudget": "clients",
    "RayLink": "links",
    "Run": "runs",
    "SplitClient": "clients",
    "SplitClientApp": "client_app",
    "StreamLink": "links",
    "UShapeClient": "clients",
    "WarmupCosine": "schedule",
    "adamw": "optimizers",
    "split_vision_model": "segments",
}

wait_passively()  # before anything here imports torch


def __getattr__(name: str) -> Any:
    """Import a name on first access, so that the `splitmix` command need not wait for torch."""
    if name == "__version__":
        return import_module("importlib.metadata").version("flwr-splitmix")
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all names, including those not imported yet."""
    return sorted({*globals(), *__all__})
