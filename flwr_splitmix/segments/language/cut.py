"""The cut of a language model: the number of layers in head and tail."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_splitmix.words import counted


@dataclass(frozen=True)
class LanguageCut:
    """Numbers of layers in head and tail; the trunk has the layers between.

    Parameters
    ----------
    head
        Number of layers in the head, which always has the embeddings; >= 0.
    tail
        Number of layers in the tail, which always has the last norm and the output layer; >= 0.

    Raises
    ------
    ValueError
        If a number is negative.
    """

    head: int
    tail: int

    def __post_init__(self) -> None:
        if self.head < 0 or self.tail < 0:
            raise ValueError(
                f"a cut with {counted(self.head, 'layer')} in the head and {self.tail} in the tail "
                "is not possible; both must be at least 0"
            )

    def spans(self, layers: int) -> tuple[range, range, range]:
        """Return the indices of the layers in head, trunk and tail of a model with `layers`.

        Raises
        ------
        ValueError
            If no layer is left for the trunk.
        """
        if self.head + self.tail >= layers:
            raise ValueError(
                f"a cut with {counted(self.head, 'layer')} in the head and {self.tail} in the tail "
                f"leaves none for the trunk: the model has {layers}, so head and tail may have at "
                f"most {max(layers - 1, 0)} together"
            )
        end = layers - self.tail
        return range(self.head), range(self.head, end), range(end, layers)
