"""Checks that the texts that a client sends are short enough for its hiding."""

from __future__ import annotations

from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.data.texts.text_set import TextSet
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.words import counted


def check_lengths(hiding: Hiding, **texts: ExampleSet | None) -> None:
    """Refuse texts that are longer than a hiding takes, which a step draws sooner or later.

    Only `TextSet` objects are checked.

    Raises
    ------
    ValueError
        If there are such texts; the message names the argument.
    """
    most = hiding.longest
    for name, data in texts.items():
        if most is None or not isinstance(data, TextSet) or not len(data):
            continue
        longest = data.pad_to or max(map(len, data.texts))
        if longest > most:
            raise ValueError(
                f"{name} has texts of up to {counted(longest, 'token')} with their padding, but "
                f"{type(hiding).__name__} takes at most {most}, so that its secret tokens fit in: "
                "cut the texts, or raise max_length (or pad_to) in its options if the model takes "
                "as much"
            )
