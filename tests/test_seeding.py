"""Draws are a function of seed, purpose and place, the same on every machine."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.seeding import (
    brief_generator,
    derive_seed,
    frozen_generator,
    generator,
    held_draws,
    secret_normal,
    secrets_are_seeded,
    seeded_draws,
    seeded_secrets,
)


def test_seeds_never_change() -> None:
    """Client and server derive them apart, and a resumed run derives them again."""
    assert derive_seed(7, "plan", 1, 2) == 7179133543773311991
    assert derive_seed(0, "upper") == 9141915847868611029


def test_every_place_has_a_seed_of_its_own() -> None:
    places = [
        (seed, purpose, *place)
        for seed in (0, 1, 12)
        for purpose in ("plan", "step")
        for place in ((), (1,), (2,), (1, 2), (12,), (2, 1), (1, 2, 0))
    ]
    seeds = {derive_seed(*place) for place in places}
    assert len(seeds) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_generators_repeat() -> None:
    assert generator(3, "plan", 1).random() == generator(3, "plan", 1).random()
    assert generator(3, "plan", 1).random() != generator(3, "plan", 2).random()


def test_frozen_generators_follow_numpys_frozen_stream() -> None:
    assert frozen_generator(2**32 + 5).randint(1000, size=3).tolist() == [867, 206, 701]
    assert (
        frozen_generator(5).permutation(6).tolist()
        == np.random.RandomState(5).permutation(6).tolist()
    )


def test_brief_generators_draw_what_frozen_ones_do() -> None:
    for seed in (5, 2**32 + 5, 2**63 - 1, 5):
        brief_generator(seed).standard_normal()  # numpy keeps the second number of a pair
        again = brief_generator(seed)
        frozen = frozen_generator(seed)
        assert again.standard_normal(3).tolist() == frozen.standard_normal(3).tolist()
        assert again.permutation(6).tolist() == frozen.permutation(6).tolist()


def test_brief_generators_disturb_no_others() -> None:
    frozen, brief = frozen_generator(3), brief_generator(5)
    others = []
    thread = threading.Thread(target=lambda: others.append(brief_generator(7)))
    thread.start()
    thread.join()
    assert brief.permutation(6).tolist() == frozen_generator(5).permutation(6).tolist()
    brief_generator(9)
    assert frozen.permutation(6).tolist() == frozen_generator(3).permutation(6).tolist()
    assert others[0].permutation(6).tolist() == frozen_generator(7).permutation(6).tolist()


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    "draw", [lambda: torch.rand(()).item(), random.random, lambda: float(np.random.randn())]
)
def test_each_global_generator_is_seeded_inside_and_left_as_it_was(
    draw: Callable[[], float], raises: bool
) -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = [draw() for _ in range(3)]
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    before = draw()  # NumPy keeps every second normal number
    inside = []
    for _ in range(2):
        with suppress(RuntimeError), seeded_draws(torch.device("cpu"), 9):
            inside.append([draw() for _ in range(3)])
            if raises:
                raise RuntimeError("stop")
    assert [before, draw(), draw()] == expected
    assert inside[0] == inside[1]
    assert not set(inside[0]) & set(expected)


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(1)), float(np.random.rand()), random.random()


def test_blocks_that_are_held_draw_what_others_do_and_restore_once() -> None:
    cpu, outside = torch.device("cpu"), []

    def draws(*, fails: bool) -> list[Any]:
        numbers: list[Any] = []
        for seed in (1, 2):
            with suppress(ZeroDivisionError), seeded_draws(cpu, seed):
                numbers.append(drawn())
                with seeded_draws(cpu, 3):  # as a trial within a client's exchange
                    numbers.append(drawn())
                numbers.append(drawn())
                if fails:
                    raise ZeroDivisionError
        return numbers

    for fails in (False, True):
        for sow in (random.seed, np.random.seed, torch.manual_seed):
            sow(7)
        expected, after = draws(fails=fails), drawn()
        for sow in (random.seed, np.random.seed, torch.manual_seed):
            sow(7)
        with held_draws():
            assert draws(fails=fails) == expected
        outside.append(drawn() == after)
    assert outside == [True, True]


def test_apples_generator_is_seeded_inside_and_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = [torch.tensor(4)]
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state[0])
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda new: state.__setitem__(0, new))
    monkeypatch.setattr(torch.mps, "manual_seed", lambda seed: state.__setitem__(0, -seed))
    with seeded_draws(torch.device("mps"), 9):
        assert state == [-9]
    assert state == [torch.tensor(4)]
    with seeded_draws(torch.device("cpu"), 9):
        assert state == [torch.tensor(4)]


def test_secret_numbers_are_standard_normal() -> None:
    drawn = secret_normal((1000, 201), torch.float64).numpy()
    size = drawn.size  # six standard errors: these draws are others every time
    assert abs(drawn.mean()) < 6 / math.sqrt(size)
    assert abs(drawn.var() - 1) < 6 * math.sqrt(2 / size)
    for bound, inside in ((1, 0.682689), (2, 0.954500), (3, 0.997300)):
        frequency = (np.abs(drawn) < bound).mean()
        assert abs(frequency - inside) < 6 * math.sqrt(inside * (1 - inside) / size)
    # Box-Muller makes two of each pair of uniform numbers: they must not depend on each other.
    first, second = drawn.ravel()[: size // 2], drawn.ravel()[size // 2 : size // 2 * 2]
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / math.sqrt(size / 2)
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 6 / math.sqrt(size / 2)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 5), (4, 0, 3), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seeded", [False, True])
def test_secret_numbers_have_the_shape_and_dtype_asked_for(
    shape: tuple[int, ...], dtype: torch.dtype, seeded: bool
) -> None:
    with seeded_secrets(seeded):
        drawn = secret_normal(shape, dtype)
    assert tuple(drawn.shape) == shape
    assert drawn.dtype == dtype
    assert bool(drawn.isfinite().all())


def test_secrets_follow_from_no_seed() -> None:
    draws = []
    for _ in range(2):
        with seeded_draws(torch.device("cpu"), 9):
            np.random.seed(9)
            draws.append(secret_normal((4,), torch.float64))
            state = torch.random.get_rng_state()
            secret_normal((4,), torch.float64)
            assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(draws[0], draws[1])


def test_seeded_secrets_repeat_inside_the_block_only() -> None:
    draws = []
    for _ in range(2):
        with seeded_draws(torch.device("cpu"), 9), seeded_secrets():
            assert secrets_are_seeded()
            draws += [secret_normal((4,), torch.float64), secret_normal((4,), torch.float64)]
        assert not secrets_are_seeded()
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[1], draws[3])
    assert not torch.equal(draws[0], draws[1])


def test_seeded_secrets_end_with_their_block_also_after_an_error() -> None:
    with seeded_secrets():
        with seeded_secrets(False):
            assert not secrets_are_seeded()
        assert secrets_are_seeded()
    with pytest.raises(RuntimeError, match="stop"), seeded_secrets():
        raise RuntimeError("stop")
    assert not secrets_are_seeded()


def test_seeding_one_thread_seeds_no_other() -> None:
    """A host may run a client whose secrets repeat beside one whose secrets are secret."""
    seeded = []
    with seeded_secrets():
        thread = threading.Thread(target=lambda: seeded.append(secrets_are_seeded()))
        thread.start()
        thread.join()
    assert seeded == [False]
