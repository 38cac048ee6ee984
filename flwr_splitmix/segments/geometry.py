"""The shape of smashed data: prefix tokens, patch tokens, width, and the patches' positions."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Literal

from flwr_splitmix.words import are, counted


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
        If the number of the grid's cells is not the number of patches.
    """

    patches: int
    width: int
    prefix: int = 0
    grid: tuple[int, int] | None = None
    positions: Literal["lower", "upper", "none"] = "lower"

    def __post_init__(self) -> None:
        if self.grid is not None:  # it may be a list, or of NumPy's integers
            rows, columns = self.grid
            object.__setattr__(self, "grid", (index(rows), index(columns)))
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
