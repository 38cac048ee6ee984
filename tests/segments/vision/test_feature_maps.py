"""A feature map seen as cells, and back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flwr_splitmix.segments import Geometry
from flwr_splitmix.segments.vision.feature_maps import CellsToMap, MapToCells, split_at_map
from flwr_splitmix.segments.vision.split_model import Request


@pytest.mark.parametrize(("height", "width", "cell"), [(6, 4, 2), (6, 4, 1), (6, 9, 3), (4, 4, 4)])
def test_folding_undoes_unfolding(height: int, width: int, cell: int) -> None:
    maps = torch.randn(2, 5, height, width)
    cells = MapToCells(cell)(maps)
    assert cells.shape == (2, height * width // cell**2, 5 * cell**2)
    # Links hand smashed data on in one memory layout.
    back = CellsToMap((height // cell, width // cell), cell)(cells.contiguous())
    assert torch.equal(back, maps)
    assert back.is_contiguous()


def test_a_cell_is_a_square_of_the_map_counted_row_by_row() -> None:
    maps = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).view(2, 3, 4, 6)
    cells = MapToCells(2)(maps)
    assert torch.equal(cells[1, 4], maps[1, :, 2:4, 2:4].flatten())  # the grid is 2 x 3


def test_gradients_go_through_both_ways() -> None:
    maps = torch.randn(2, 3, 4, 4, requires_grad=True)
    weights = torch.randn(2, 3, 4, 4)
    back = CellsToMap((2, 2), 2)(MapToCells(2)(maps))
    (gradient,) = torch.autograd.grad((back * weights).sum(), maps)
    assert torch.equal(gradient, weights)


def request(cell: int) -> Request:
    return Request("a CNN", None, 3, 2, 6, 1, None, "lower", cell)


def test_a_cut_before_an_activation_in_place_spares_the_smashed_data() -> None:
    stages: list[tuple[str, nn.Module]] = [
        ("conv", nn.Conv2d(2, 4, 1)),
        ("act", nn.ReLU(inplace=True)),
        ("head", nn.Flatten()),
    ]
    lower, upper = split_at_map(request(cell=1), stages, at=1)
    smashed = lower(torch.randn(3, 2, 6, 6)).detach().requires_grad_()
    before = smashed.detach().clone()
    upper(smashed).sum().backward()
    assert torch.equal(smashed, before)
    assert smashed.grad is not None
    assert torch.equal(smashed.grad, (before > 0).float())


def test_measuring_the_map_leaves_running_statistics_alone() -> None:
    norm = nn.BatchNorm2d(2)
    lower, upper = split_at_map(request(cell=3), [("norm", norm), ("head", nn.Flatten())], at=1)
    assert norm.num_batches_tracked == 0
    assert norm.training
    assert lower.geometry == upper.geometry == Geometry(4, 18, grid=(2, 2), positions="none")


@pytest.mark.parametrize("cell", [0, -1, 4, 12])
def test_a_cell_that_does_not_divide_the_map_is_refused(cell: int) -> None:
    with pytest.raises(
        ValueError,
        match=rf"cell {cell} does not divide the 6 x 6 map of a CNN at this cut; "
        "it must be one of 1, 2, 3, 6",
    ):
        split_at_map(request(cell), [("conv", nn.Conv2d(2, 4, 1)), ("flat", nn.Flatten())], at=1)
