"""Random draws: public ones are derived from the run's seed, a purpose and a place in the run.

No draw depends on an earlier one, so a resumed run, another link or a repeated step draws the same
public numbers. Secrets (noise, a client's own shuffles) come from the operating system instead.
"""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from hashlib import blake2b

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor


def derive_seed(seed: int, purpose: str, *place: int) -> int:
    """Hash (seed, purpose, place...) to an integer in [0, 2**63): equal on every machine."""
    text = ":".join([str(seed), purpose, *map(str, place)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """Return a numpy generator for one purpose at one place."""
    return np.random.default_rng(derive_seed(seed, purpose, *place))


def frozen_generator(seed: int) -> np.random.RandomState:
    """Return a generator with the same stream on client and server, whatever their numpy versions.

    numpy guarantees (NEP 19) that the streams of `RandomState` never change; those of `Generator`
    and of torch may.
    """
    return np.random.RandomState(seed % 2**32)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.generator = frozen_generator(0)


_OF_THREAD = _OfThread()


def brief_generator(seed: int) -> np.random.RandomState:
    """Return a `frozen_generator` that is valid until this thread's next call of this function.

    It is one generator, seeded anew: numpy takes a hundred times as long to make another one.
    """
    _OF_THREAD.generator.seed(seed % 2**32)
    return _OF_THREAD.generator


def order_generator(seed: int | bytes, purpose: str, *place: int) -> np.random.RandomState:
    """Return a `brief_generator` for one purpose at one place, of a public seed or a secret key.

    Parameters
    ----------
    seed
        A seed; or a key of at most 64 bytes, of which 256 bits count, so that no one can try them
        all, as one could the 32 bits of a seed.
    """
    if isinstance(seed, int):
        return brief_generator(derive_seed(seed, purpose, *place))
    text = ":".join([purpose, *map(str, place)])
    words = blake2b(text.encode(), key=seed, digest_size=32).digest()
    _OF_THREAD.generator.seed(np.frombuffer(words, dtype="<u4").astype(np.uint32))
    return _OF_THREAD.generator


_HELD: ContextVar[bool] = ContextVar("held_draws", default=False)
"""Whether `held_draws` restores the generators, so that a first `seeded_draws` need not."""


@contextmanager
def held_draws() -> Iterator[None]:
    """Restore the global generators of the CPU after the block, for many `seeded_draws` in it.

    These take half as long, as only what is nested in one of them restores what it finds. So
    nothing may be drawn in the block outside of them.
    """
    with _restored([]):
        token = _HELD.set(True)
        try:
            yield
        finally:
            _HELD.reset(token)


@contextmanager
def _restored(devices: list[torch.device]) -> Iterator[None]:
    ours, theirs = random.getstate(), np.random.get_state(legacy=False)
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(ours)
            np.random.set_state(theirs)


@contextmanager
def seeded_draws(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python inside the block, and restore them.

    On the CPU it leaves that to `held_draws`, if it is the first within.
    """
    is_held = _HELD.get() and device.type == "cpu"
    devices = [device] if device.type == "cuda" else []
    token = _HELD.set(False)
    try:
        with nullcontext() if is_held else _restored(devices):
            # torch.manual_seed would seed every device of the process, even those not restored.
            torch.default_generator.manual_seed(seed)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            random.seed(seed)
            np.random.seed(derive_seed(seed, "numpy") % 2**32)
            with _mps_seed(seed) if device.type == "mps" else nullcontext():
                yield
    finally:
        _HELD.reset(token)


@contextmanager
def _mps_seed(seed: int) -> Iterator[None]:
    """Seed the generator of Apple's GPU inside the block, and restore its state afterwards."""
    before = torch.mps.get_rng_state()
    torch.mps.manual_seed(seed)
    try:
        yield
    finally:
        torch.mps.set_rng_state(before)


_SEEDED_SECRETS: ContextVar[bool] = ContextVar("seeded_secrets", default=False)


def secrets_are_seeded() -> bool:
    """Return whether the code runs inside `seeded_secrets`."""
    return _SEEDED_SECRETS.get()


def secret_uniform(shape: Sequence[int]) -> Tensor:
    """Draw uniform numbers in [0, 1) from the operating system's random bytes, 53 bits each.

    Inside `seeded_secrets` they come from torch's default generator.

    Returns
    -------
    float64 tensor of the given shape, on the CPU.
    """
    if _SEEDED_SECRETS.get():
        return torch.rand(tuple(shape), dtype=torch.float64)
    return _uniform(os.urandom(8 * math.prod(shape))).reshape(tuple(shape))


def secret_normal(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Draw standard normal numbers that cannot be reproduced, for noise.

    Their bits are an AES-256 stream in counter mode, with a fresh key from the operating system
    for every call; this is ten times as fast as the operating system's own bytes. Each number is
    made from 106 bits (Box-Muller, in float64): the tails end at 8.6 standard deviations. Inside
    `seeded_secrets` they come from torch's default generator.

    Returns
    -------
    Tensor of the given shape and floating dtype, on the CPU.
    """
    if _SEEDED_SECRETS.get():
        return torch.randn(tuple(shape), dtype=dtype)
    size = math.prod(shape)
    half = (size + 1) // 2
    stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
    radius, angle = _uniform(stream.update(bytes(16 * half))).reshape(2, half)
    radius = radius.neg_().log1p_().mul_(-2).sqrt_()
    angle *= 2 * math.pi
    normal = torch.cat([radius * angle.cos(), angle.sin_().mul_(radius)])
    return normal[:size].reshape(tuple(shape)).to(dtype)


def _uniform(data: bytes) -> Tensor:
    bits = np.frombuffer(data, dtype=np.uint64) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64)).div_(2.0**53)


@contextmanager
def seeded_secrets(active: bool = True) -> Iterator[None]:
    """Make secrets repeatable inside the block: for tests and reproductions, not private data."""
    token = _SEEDED_SECRETS.set(active)
    try:
        yield
    finally:
        _SEEDED_SECRETS.reset(token)
