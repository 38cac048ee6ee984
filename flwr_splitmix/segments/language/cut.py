"""The cut of a language model: the number of layers in head and tail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LanguageCut:
    """The layers of head and tail; the trunk gets those between.

    Parameters
    ----------
    head
        Layers in the head, which always has the embeddings; >= 0.
    tail
        Layers in the tail, which always has the last norm and the output layer; >= 0.

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
                f"a cut with {self.head} layers in the head and {self.tail} in the tail is not "
                "possible; both must be at least 0"
            )

    def spans(self, layers: int) -> tuple[range, range, range]:
        """Return the layers of head, trunk and tail of a model with so many layers.

        Raises
        ------
        ValueError
            If none is left for the trunk.
        """
        if self.head + self.tail >= layers:
            raise ValueError(
                f"a cut with {self.head} layers in the head and {self.tail} in the tail leaves "
                f"none for the trunk: the model has {layers}, so head and tail may have at most "
                f"{max(layers - 1, 0)} together"
            )
        end = layers - self.tail
        return range(self.head), range(self.head, end), range(end, layers)
