"""A case of texts to attack: what a server received of them, and the truth for the score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flwr_splitmix.attacks.texts.releasing import TextOrigin
from flwr_splitmix.attacks.texts.view import TextView

__all__ = ["TextCase"]


class TextCase(NamedTuple):
    """A view, for the attack, and the truth behind it, for the score only.

    Parameters
    ----------
    trained
        For each release, whether its text was trained on.
    """

    view: TextView
    origins: Sequence[TextOrigin]
    trained: Sequence[bool]
