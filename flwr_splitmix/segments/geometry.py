"""The shape of smashed data: prefix tokens, patch tokens, width."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    patches: int
    width: int
    prefix: int = 0

    @property
    def tokens(self) -> int:
        """All tokens of a sample."""
        return self.prefix + self.patches

    def shape(self, batch: int) -> tuple[int, int, int]:
        """Return the shape of a batch of smashed data."""
        return (batch, self.tokens, self.width)

    def __str__(self) -> str:
        prefix = f"{self.prefix} prefix tokens + " if self.prefix else ""
        return f"{prefix}{self.patches} patches x {self.width}"
