"""A trial of whole batches: it looks at every two examples, in few forward passes."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.segments.across_batch import mixes_examples


class Pair(nn.Module):
    """Adds a little of an example to another one."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.source, self.target = source, target

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs.clone()
        outputs[self.target] += 0.01 * inputs[self.source]
        return outputs


class Far(nn.Module):
    """Adds a little of the example four places behind."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 0.01 * torch.cat([inputs[4:], 0 * inputs[:4]])


class OfMany(nn.Module):
    """Centres batches of more than four examples."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - inputs.mean(0) if len(inputs) > 4 else inputs


class Scaled(nn.Module):
    """Divides by the largest number of the batch, as quantisation does."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / inputs.abs().max()


class Trimmed(nn.Module):
    """Leaves out the places at the end at which all texts have a 0."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, : int(inputs.any(0).nonzero().max()) + 1].float()


class Counted(nn.Linear):
    """Knows the size of each batch that it has seen."""

    sizes: list[int] = []  # noqa: RUF012  # of all copies

    def forward(self, inputs: Tensor) -> Tensor:
        self.sizes.append(len(inputs))
        return super().forward(inputs)


class Choosy(nn.Module):
    """Takes ones alone, and mixes them."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not (inputs == 1).all():
            raise ValueError("not a one")
        return inputs.cumsum(0)


@pytest.mark.parametrize("size", [5, 8])
def test_an_example_that_moves_any_other_one_is_found(size: int) -> None:
    inputs = torch.randn(size, 3, 2)
    for source, target in permutations(range(size), 2):
        assert mixes_examples(Pair(source, target), inputs), (source, target)


@pytest.mark.parametrize("layer", [Far(), OfMany(), Scaled()], ids=lambda each: type(each).__name__)
def test_what_shows_in_larger_batches_is_found(layer: nn.Module) -> None:
    """A trial of four examples would not show it."""
    assert mixes_examples(layer, torch.rand(8, 3, 2))


@pytest.mark.parametrize("size", [4, 5, 8])
def test_the_one_example_on_which_the_others_depend_is_found_wherever_it_is(size: int) -> None:
    for place in range(size):
        ids = torch.tensor([[5, 3, 0, 0]]).repeat(size, 1)
        ids[:, 1] = torch.arange(size)
        ids[place] = torch.tensor([3, 1, 4, 2])
        assert mixes_examples(Trimmed(), ids, renewed=False), place
        numbers = torch.rand(size, 3, 2)
        numbers[place] += 5
        assert mixes_examples(Scaled(), numbers, renewed=False), place


@pytest.mark.parametrize(("size", "passes"), [(1, 6), (32, 9), (33, 10), (64, 10)])
def test_the_number_of_passes_grows_as_the_logarithm_of_the_batch(size: int, passes: int) -> None:
    """Once with the segment's weights, once with random ones."""
    Counted.sizes.clear()
    assert mixes_examples(Counted(2, 2), torch.rand(size, 3, 2)) == ""
    assert Counted.sizes == 2 * passes * [max(size, 4)]
    Counted.sizes.clear()
    assert mixes_examples(Counted(2, 2), torch.rand(size, 3, 2), renewed=False) == ""
    assert Counted.sizes == passes * [max(size, 4)]


def test_a_trial_in_which_nothing_could_be_replaced_tells_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert mixes_examples(Choosy(), torch.ones(4, 3)) is None
    assert "it fails on other inputs than these, which are all alike" in caplog.text
