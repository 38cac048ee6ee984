"""Boxes of Vanilla CutMix: their distribution, their borders, and what they do to smashed data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flwr_splitmix.mixers import (
    BoxShare,
    Group,
    Member,
    Plan,
    SmashedShape,
    Upload,
    VanillaCutMix,
)


def shape(rows: int, columns: int, prefix: int = 0) -> SmashedShape:
    return SmashedShape(4, rows * columns, 3, prefix, grid=(rows, columns))


def boxes(plan: Plan) -> tuple[BoxShare, BoxShare]:
    """Return the shares (outside, inside) of the plan's only group."""
    ((group,),) = plan.passes
    outside, inside = (member.share for member in group.members)
    assert isinstance(outside, BoxShare)
    assert isinstance(inside, BoxShare)
    assert (outside.inside, inside.inside) == (False, True)
    return outside, inside


def drawn(size: int, rows: int, columns: int, beta: float) -> list[BoxShare]:
    rng = np.random.default_rng(4)
    mixer = VanillaCutMix(beta=beta)
    return [boxes(mixer.plan([0, 1], shape(rows, columns), rng))[0] for _ in range(size)]


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (3, 5), (2, 9), (1, 7), (1, 1)])
@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_the_mixing_ratio_is_what_the_box_leaves(rows: int, columns: int, beta: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        plan = VanillaCutMix(beta=beta).plan([7, 3], shape(rows, columns), rng)
        outside, inside = boxes(plan)
        grid = np.zeros((rows, columns), dtype=bool)
        grid[inside.top : inside.bottom, inside.left : inside.right] = True
        assert inside.positions(4).tolist() == np.flatnonzero(grid).tolist()
        assert outside.positions(4).tolist() == np.flatnonzero(~grid).tolist()
        assert inside.count() == grid.sum()
        assert outside.count() == (~grid).sum()
        assert inside.lam == pytest.approx(grid.mean(), abs=1e-15)
        assert outside.lam == pytest.approx(1 - grid.mean(), abs=1e-15)


def clipped(length: int, side: int) -> float:
    """Return the mean length of a side around a uniform centre, clipped at both ends."""
    inside = range(length)
    lengths = [sum(c - side // 2 + step in inside for step in range(side)) for c in range(length)]
    return sum(lengths) / length


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (4, 16)])
def test_the_mean_ratio_is_that_of_a_uniform_ratio_and_a_uniform_centre(
    rows: int, columns: int
) -> None:
    """Beta(1, 1) is uniform: the mean is an integral over it, taken here as a sum."""
    grid = (np.arange(20_000) + 0.5) / 20_000
    sides = np.sqrt(1 - grid)
    areas = [
        clipped(rows, math.floor(rows * side)) * clipped(columns, math.floor(columns * side))
        for side in sides[::20]
    ]
    expected = 1 - np.mean(areas) / (rows * columns)
    ratios = np.array([share.lam for share in drawn(8_000, rows, columns, 1.0)])
    assert ratios.mean() == pytest.approx(expected, abs=4 * ratios.std() / math.sqrt(8_000))


def test_a_box_is_empty_as_often_as_its_side_is_below_one_patch() -> None:
    """floor(8 sqrt(1 - lam)) = 0 where 1 - lam < 1/64: once in 64 for uniform lam."""
    size = 20_000
    empty = np.mean([share.lam == 1 for share in drawn(size, 8, 8, 1.0)])
    assert empty == pytest.approx(1 / 64, abs=4 * math.sqrt(1 / 64 / size))


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (16, 1), (1, 64)])
def test_a_box_in_a_single_row_is_a_part_of_its_length(rows: int, columns: int) -> None:
    """A side of floor(sqrt(1 - lam)) = 0 would make every box empty, and nothing would be mixed."""
    cells, size = rows * columns, 8_000
    ratios = np.array([share.lam for share in drawn(size, rows, columns, 1.0)])
    # floor(n (1 - lam)) = 0 where 1 - lam < 1/n
    assert np.mean(ratios == 1) == pytest.approx(1 / cells, abs=4 / math.sqrt(cells * size))
    areas = [clipped(cells, side) for side in range(cells)]
    assert ratios.mean() == pytest.approx(1 - np.mean(areas) / cells, abs=0.02)


def test_a_large_a_makes_boxes_of_half_the_area() -> None:
    """The ratio is 1/2 then: sides of floor(8 / sqrt(2)) = 5, fewer at the border."""
    sides = [(s.bottom - s.top, s.right - s.left) for s in drawn(500, 8, 8, 1e6)]
    # Two patches before the centre and two behind it: whole from centre 2 to 5.
    assert {row for row, _ in sides} == {column for _, column in sides} == {3, 4, 5}
    whole = np.mean([side == (5, 5) for side in sides])
    assert whole == pytest.approx((4 / 8) ** 2, abs=0.08)


class Fixed:
    """A generator that draws what it is told."""

    def __init__(self, ratio: float, *centre: int) -> None:
        self.ratio, self.centre = ratio, iter(centre)

    def permutation(self, members: list[int]) -> np.ndarray:
        return np.array(members)

    def beta(self, a: float, b: float) -> float:
        assert a == b
        return self.ratio

    def integers(self, high: int) -> int:
        return next(self.centre)


@pytest.mark.parametrize(
    ("grid", "ratio", "centre", "box"),
    [
        ((8, 8), 0.75, (4, 4), (2, 6, 2, 6)),  # side 4 around the centre
        ((8, 8), 0.75, (0, 7), (0, 2, 5, 8)),  # clipped at two borders
        ((8, 8), 0.0, (4, 4), (0, 8, 0, 8)),  # everything
        ((8, 8), 0.0, (0, 4), (0, 4, 0, 8)),
        ((8, 8), 0.99, (4, 4), (4, 4, 4, 4)),  # floor(8 x 0.1) = 0: nothing
        ((8, 8), 1.0, (0, 0), (0, 0, 0, 0)),
        ((4, 6), 0.75, (1, 3), (0, 2, 2, 5)),  # sides 2 and 3
        ((4, 6), 0.75, (3, 5), (2, 4, 4, 6)),
        ((2, 8), 0.75, (0, 4), (0, 1, 2, 6)),
        ((1, 5), 0.5, (0, 2), (0, 1, 1, 3)),  # a single row: half of its length
    ],
)
def test_boxes_by_hand(
    grid: tuple[int, int], ratio: float, centre: tuple[int, int], box: tuple[int, ...]
) -> None:
    rng: Any = Fixed(ratio, *centre)
    outside, inside = boxes(VanillaCutMix().plan([0, 1], shape(*grid), rng))
    top, bottom, left, right = box
    assert (inside.top, inside.bottom, inside.left, inside.right) == box
    area = (bottom - top) * (right - left)
    assert inside.count() == area
    assert outside.lam == 1 - area / (grid[0] * grid[1])


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("box", [(1, 3, 2, 4), (0, 0, 0, 0), (0, 3, 0, 5)], ids=str)
def test_the_mixture_has_one_client_in_the_box_and_the_other_around_it(
    box: tuple[int, int, int, int], prefix: int
) -> None:
    rows, columns = 3, 5
    inside = torch.zeros(rows, columns, dtype=torch.float64)
    inside[box[0] : box[1], box[2] : box[3]] = 1
    lam = float(inside.mean())
    members = tuple(
        Member(
            client,
            BoxShare(
                lam=weight, patches=rows * columns, prefix=prefix, columns=columns,
                top=box[0], bottom=box[1], left=box[2], right=box[3], inside=bool(client),
            ),
        )
        for client, weight in enumerate((1 - lam, lam))
    )  # fmt: skip
    plan = Plan(shape(rows, columns, prefix), ((Group(members),),))
    size = plan.shape.size
    smashed = [torch.randn(size, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    labels = [torch.tensor([0, 1, 2, 0]), torch.tensor([2, 2, 0, 1])]
    uploads = {
        member.client: Upload([member.share.upload(s)[0]], y)
        for member, s, y in zip(members, smashed, labels, strict=True)
    }
    mixed = VanillaCutMix().merge(uploads, plan, num_classes=3)

    mask = inside.flatten()[None, :, None]
    expected = mask * smashed[1][:, prefix:] + (1 - mask) * smashed[0][:, prefix:]
    assert torch.equal(mixed.smashed[:, prefix:], expected)
    first = (1 - lam) * smashed[0][:, :prefix] + lam * smashed[1][:, :prefix]
    torch.testing.assert_close(mixed.smashed[:, :prefix], first, rtol=0, atol=1e-15)
    hot = [F.one_hot(y, 3).double() for y in labels]
    torch.testing.assert_close(mixed.targets, (1 - lam) * hot[0] + lam * hot[1])

    gradient = torch.randn(size, dtype=torch.float64)
    back = VanillaCutMix().split(gradient, mixed, plan)
    for client, member in enumerate(members):
        (returned,) = back[client]
        assert returned is not None
        assert tuple(returned.shape) == member.share.upload_shape(size)
        (exact,) = torch.autograd.grad(
            (gradient * mixed.smashed).sum(), smashed[client], retain_graph=True
        )
        (arrived,) = torch.autograd.grad(
            (returned * member.share.upload(smashed[client])[0]).sum(), smashed[client]
        )
        torch.testing.assert_close(arrived, exact, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"k": 3}, "k is 3; VanillaCutMix mixes pairs"),
        ({"k": 1}, "k is 1; VanillaCutMix mixes pairs"),
        ({"beta": 0.0}, r"beta is 0\.0; it must be greater than 0"),
        ({"beta": -1.0}, r"beta is -1\.0"),
        ({"beta": math.nan}, "beta is nan"),
        ({"beta": math.inf}, "beta is inf"),
        ({"regroup": "never"}, "regroup is 'never'; it must be one of step, epoch"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        VanillaCutMix(**options)


def test_patches_that_form_no_grid_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="12 patches form no square, and neither segment's geom"):
        VanillaCutMix().plan([0, 1], SmashedShape(4, 12, 3), rng)
    outside, _ = boxes(VanillaCutMix().plan([0, 1], SmashedShape(4, 9, 3), rng))
    assert outside.columns == 3


def test_a_square_that_is_only_guessed_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The 16 patches of a series need not be 4 x 4."""
    rng, mixer = np.random.default_rng(0), VanillaCutMix()
    for grid in ((2, 8), None, None):
        mixer.plan([0, 1], SmashedShape(4, 16, 3, grid=grid), rng)
    (warning,) = caplog.messages
    assert warning.startswith(
        "VanillaCutMix takes 16 patches for a grid of 4 x 4, as neither segment"
    )
