"""Small systems to attack, each trained once a session."""

from __future__ import annotations

from functools import cache
from typing import Any

from flwr_splitmix.attacks.attacked import Attacked
from flwr_splitmix.attacks.bench import train_victim
from flwr_splitmix.attacks.victim import Victim
from flwr_splitmix.privacy import GaussianNoise

NOISE = GaussianNoise(sigma_s=0.5, sigma_y=0.25)


def small(method: str = "PSL", **changes: Any) -> Victim:
    """Return two clients' two steps of a ViT with 16 patches and one block above the cut."""
    depth = 2 if "Shuffle" in method and not method.startswith("Shuffled") else 1
    options = {"noise": NOISE} if method.startswith("DP") else {}
    values = {
        "method": method, "options": options, "model_options": {"patch_size": 8, "depth": depth},
        "clients": 2, "samples": 24, "rounds": 2, "steps": 2, "batch_size": 8, "test_images": 8,
    }  # fmt: skip
    return Victim(**{**values, **changes})


@cache
def attacked(method: str = "PSL") -> Attacked:
    """Return the trained system, its recording and its truth."""
    return train_victim(small(method))
