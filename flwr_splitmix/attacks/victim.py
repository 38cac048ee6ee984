"""The description of a system trained to be attacked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flwr_splitmix.attacks.defences import Defence
from flwr_splitmix.privacy import GaussianNoise


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A system trained to be attacked; equal descriptions give the same system.

    Parameters
    ----------
    method, options
        Name of the strategy, and its own options, including noise.
    model, model_options
        Arguments of `split_vision_model`: "depth", "patch_size", "cut_at", ...
    dataset
        As for `load_images`; its training images are divided among the clients, and held-out
        victims come from its test set.
    image_size
        Side of images in pixels.
    clients, samples
        Number of clients, and of training images per client; the remaining images are spare.
    rounds, steps
        Number of rounds, and of steps per round (None: an epoch). `rounds` is the training stage.
    batch_size, lr, weight_decay
        For both sides.
    defence
        An additional defence of the clients, see `defences`: "none", "blur" or "adversarial".
    test_images
        How many test images the system is evaluated on, after the last round.
    seed
        Seed of all draws.
    """

    method: str = "PSL"
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "vit_tiny_patch16_224"
    model_options: Mapping[str, Any] = field(default_factory=lambda: {"patch_size": 4, "depth": 6})
    dataset: str = "fashion-mnist-small"
    image_size: int = 32
    clients: int = 2
    samples: int = 500
    rounds: int = 5
    steps: int | None = None
    batch_size: int = 32
    lr: float = 1e-3
    weight_decay: float = 0.05
    defence: Defence = "none"
    test_images: int = 500
    seed: int = 0

    def plain(self) -> dict[str, Any]:
        """Return the description as JSON values."""
        noise = {
            k: dict(v.to_plain()) for k, v in self.options.items() if isinstance(v, GaussianNoise)
        }
        return {**asdict(self), "options": {**self.options, **noise}}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Victim:
        """Make a victim from the result of `plain`."""
        options = dict(values["options"])
        if "noise" in options:
            options["noise"] = GaussianNoise.from_plain(options["noise"])
        return cls(**{**values, "options": options})
