"""The shape of smashed data: prefix tokens, patch tokens, width, and the patches' positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flwr_splitmix.values import check_choice, whole_number
from flwr_splitmix.words import are, counted

Positions = Literal["lower", "upper", "none"]
"""Which segment knows the patches' places."""


@dataclass(frozen=True)
class Geometry:
    """Shape of one sample's smashed data (prefix + patches, width).

    Parameters
    ----------
    patches
        Number N of patch tokens, the ones that masks select.
    width
        Embedding width d.
    prefix
        Tokens in front of the patches that are never masked: 0 when the model is cut at the
        embedding, the class (and register or distillation) tokens when it is cut at a block.
    grid
        (rows, columns) if the patches form a grid, row by row; else None.
    positions
        The segment that adds the patches' position embeddings; "upper" adds them by slot, to
        whichever patch is in it. "lower" also: layers of the lower segment know the slots, as
        attention with biases does. "none": neither, like a CNN.

    Raises
    ------
    ValueError
        If a number is not whole or too small, the grid is not a pair of them or has another number
        of cells than there are patches, or `positions` is none of the three.
    """

    patches: int
    width: int
    prefix: int = 0
    grid: tuple[int, int] | None = None
    positions: Positions = "lower"

    def __post_init__(self) -> None:
        for name, least in (("patches", 1), ("width", 1), ("prefix", 0)):
            number = whole_number(f"Geometry: {name}", getattr(self, name), least)
            object.__setattr__(self, name, number)  # it may be one of NumPy's integers
        check_choice("Geometry: positions", self.positions, get_args(Positions))
        if self.grid is not None:
            object.__setattr__(self, "grid", _pair(self.grid))
        if self.grid is not None and self.grid[0] * self.grid[1] != self.patches:
            raise ValueError(
                f"a grid of {counted(self.grid[0], 'row')} and {counted(self.grid[1], 'column')} "
                f"has {counted(self.grid[0] * self.grid[1], 'cell')}, but there "
                f"{are(self.patches)} {counted(self.patches, 'patch')}"
            )

    @property
    def tokens(self) -> int:
        """Number of a sample's tokens: prefix and patches."""
        return self.prefix + self.patches

    def shape(self, batch: int) -> tuple[int, int, int]:
        """Return the shape of a batch of smashed data."""
        return (batch, self.tokens, self.width)

    def __str__(self) -> str:
        prefix = f"{counted(self.prefix, 'prefix token')} + " if self.prefix else ""
        return f"{prefix}{counted(self.patches, 'patch')} x {self.width}"


def _pair(grid: Any) -> tuple[int, int]:
    """Return a grid, which may be a list, as a pair of whole numbers >= 1."""
    try:
        rows, columns = grid
    except (TypeError, ValueError):
        raise ValueError(f"Geometry: grid is {grid!r}; expected (rows, columns)") from None
    return whole_number("Geometry: rows", rows, 1), whole_number("Geometry: columns", columns, 1)


def geometry_of(name: str, segment: object) -> Geometry | None:
    """Return the attribute `geometry` of a segment; None without one, or if it is something else.

    Raises
    ------
    TypeError
        If it is meant as one, but is a tuple, list or mapping; the message begins with `name`.
    """
    geometry = getattr(segment, "geometry", None)
    if isinstance(geometry, (tuple, list, Mapping)):
        raise TypeError(
            f"{name}.geometry is {geometry!r:.60}; expected a Geometry(patches, width, ...) of "
            "flwr_splitmix.segments, or another name if it means something else"
        )
    return geometry if isinstance(geometry, Geometry) else None  # modules mean much by it
