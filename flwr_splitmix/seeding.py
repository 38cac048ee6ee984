"""Public random draws: each a function of the run's seed, a purpose and a place in the run.

Nothing here keeps state, so a resumed run, another link or a repeated step draws the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch


def derive_seed(seed: int, purpose: str, *place: int) -> int:
    """Hash (seed, purpose, place...) to an integer in [0, 2**63): equal on every machine."""
    text = ":".join([str(seed), purpose, *map(str, place)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """Return a numpy generator for one purpose at one place."""
    return np.random.default_rng(derive_seed(seed, purpose, *place))


def frozen_generator(seed: int) -> np.random.RandomState:
    """Return a generator whose stream client and server share although they may run other versions.

    numpy promises (NEP 19) that the streams of `RandomState` never change; those of `Generator`
    and of torch may.
    """
    return np.random.RandomState(seed % 2**32)


@contextmanager
def torch_seed(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch's default generator inside the block and put it back as it was afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # torch.manual_seed would seed every device of the process, also those not put back.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
