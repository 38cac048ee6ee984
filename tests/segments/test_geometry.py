"""The geometry of smashed data."""

from __future__ import annotations

from typing import Any

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
    number: Any = np.int64(6)
    geometry = Geometry(number, 8, grid=[np.int64(2), np.int64(3)])  # type: ignore[arg-type]
    assert geometry.grid == (2, 3)
    assert [type(n) for n in (geometry.patches, *(geometry.grid or ()))] == [int] * 3
    assert hash(geometry)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patches": "16"}, "Geometry: patches is '16'; it must be a whole number"),
        ({"patches": 0}, "Geometry: patches is 0; it must be at least 1"),
        ({"width": 32.0}, "Geometry: width is 32.0; it must be a whole number"),
        ({"prefix": -1}, "Geometry: prefix is -1; it must be at least 0"),
        (
            {"positions": "Lower"},
            "Geometry: positions is 'Lower'; it must be one of lower, upper, none",
        ),
        ({"positions": None}, "Geometry: positions is None; it must be one of lower, upper, none"),
        ({"grid": 16}, r"Geometry: grid is 16; expected \(rows, columns\)"),
        ({"grid": (4, 2, 2)}, r"Geometry: grid is \(4, 2, 2\); expected \(rows, columns\)"),
        ({"grid": ("4", 4)}, "Geometry: rows is '4'; it must be a whole number"),
        ({"grid": (-4, -4)}, "Geometry: rows is -4; it must be at least 1"),
    ],
    ids=str,
)
def test_what_is_no_geometry_is_refused_where_it_is_made(
    options: dict[str, Any], message: str
) -> None:
    """Text for a number would fail later, and a misspelt place would silence a warning."""
    with pytest.raises(ValueError, match=message):
        Geometry(**{"patches": 16, "width": 32, **options})
