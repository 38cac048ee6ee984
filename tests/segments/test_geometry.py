"""The geometry of smashed data."""

from __future__ import annotations

import numpy as np
import pytest

from flwr_splitmix.segments import Geometry


def test_a_grid_has_a_cell_for_each_patch() -> None:
    assert Geometry(12, 5, grid=(3, 4)).grid == (3, 4)
    with pytest.raises(ValueError, match=r"3 rows and 5 columns has 15 cells, but there are 12"):
        Geometry(12, 5, grid=(3, 5))


def test_geometries_are_equal_by_value() -> None:
    one, same = (Geometry(12, 5, 1, (3, 4), "upper") for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != Geometry(12, 5, 1, (4, 3), "upper")
    assert one != Geometry(12, 5, 1, (3, 4), "lower")


def test_prefix_tokens_are_tokens() -> None:
    geometry = Geometry(patches=12, width=5, prefix=2)
    assert geometry.tokens == 14
    assert geometry.shape(3) == (3, 14, 5)
    assert str(geometry) == "2 prefix tokens + 12 patches x 5"
    assert str(Geometry(patches=1, width=5, prefix=1)) == "1 prefix token + 1 patch x 5"


def test_a_grid_may_be_a_list_or_of_numpys_integers() -> None:
    geometry = Geometry(6, 8, grid=[np.int64(2), np.int64(3)])  # type: ignore[arg-type]
    assert geometry.grid == (2, 3)
    assert [type(number) for number in geometry.grid or ()] == [int, int]
    assert hash(geometry)
