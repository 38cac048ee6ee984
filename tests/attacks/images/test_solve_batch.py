"""Images that Naive Mix mixed: a batch is read where one message is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.linear import Linear
from flwr_splitmix.attacks.images.solve_batch import SolveBatch
from flwr_splitmix.mixers import NoMixing
from tests.attacks.images.conftest import Bench, Embedding


class Mixing(Embedding):
    """Mixes each image's tokens with those of the next one in its batch, as NaiveMixSL does."""

    def __init__(self, seed: int, lam: float) -> None:
        super().__init__(seed)
        self.lam = lam

    def forward(self, images: Tensor) -> Tensor:
        tokens = super().forward(images)
        return self.lam * tokens + (1 - self.lam) * tokens.roll(-1, 0)


def mixed(bench: Bench, size: int, lam: float) -> View:
    view = bench.view(NoMixing(), lowers={0: Mixing(0, lam)}, batch_size=size)
    knowledge = replace(view.knowledge, mixes_batch=True, options={"lam": lam})
    return replace(view, knowledge=knowledge)


@pytest.mark.parametrize(("size", "lam"), [(7, 0.5), (8, 0.3)])
def test_a_batch_with_one_solution_is_read_exactly(bench: Bench, size: int, lam: float) -> None:
    view = mixed(bench, size, lam)
    assert bench.error(bench.attack(Linear(), view), view) > 0.3 * bench.floor
    assert bench.error(bench.attack(SolveBatch(), view), view) < 1e-6


def test_an_even_batch_in_halves_is_read_better_than_its_messages(bench: Bench) -> None:
    view = mixed(bench, 8, 0.5)
    one = bench.error(bench.attack(Linear(), view), view)
    assert bench.error(bench.attack(SolveBatch(), view), view) < 0.5 * one


def test_there_is_no_batch_to_solve_where_none_is_mixed(bench: Bench) -> None:
    with pytest.raises(NotApplicable, match="a method does not mix the images of a batch"):
        bench.attack(SolveBatch(), bench.view(NoMixing()))
