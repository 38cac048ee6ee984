"""Rows and columns common to the papers' privacy tables."""

from __future__ import annotations

from dataclasses import replace

from flwr_splitmix.experiments.cells import Value, as_options
from flwr_splitmix.experiments.privacy.columns import COLUMNS, Column
from flwr_splitmix.experiments.privacy.rows import ROWS, Row

AMOUNTS = {"10 %": 0.1, "100 %": 1.0}
"""Fractions of the public images, by the name of a table's column."""


def column(attack: str, adversary: str, variant: str = "") -> Column:
    """Return the column of the matrix with an attack, an adversary and a variant."""
    return next(
        c for c in COLUMNS if (c.attack, c.adversary, c.variant) == (attack, adversary, variant)
    )


DECODER_CELLS = {
    name: replace(column("decoder", "upper only"), public=part) for name, part in AMOUNTS.items()
}
"""The papers' decoder on the upper segment's inputs, by amount of public images."""


def row(method: str, **options: Value) -> Row:
    """Return a row of the matrix, or one with further options under its own name."""
    if not options:
        return ROWS[method]
    base = ROWS[method]
    option_words = " ".join(
        f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in options.items()
    )
    return replace(
        base, name=f"{method} {option_words}", options=as_options({**dict(base.options), **options})
    )
