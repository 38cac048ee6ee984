"""Rows and columns that the papers' privacy tables have in common."""

from __future__ import annotations

from dataclasses import replace

from flwr_splitmix.experiments.cells import Value, as_options
from flwr_splitmix.experiments.privacy.columns import COLUMNS, Column
from flwr_splitmix.experiments.privacy.rows import ROWS, Row

AMOUNTS = {"10 %": 0.1, "100 %": 1.0}
"""Of the public images, by the name of a table's column."""


def column(attack: str, adversary: str, variant: str = "") -> Column:
    """Return a column of the matrix."""
    return next(
        c for c in COLUMNS if (c.attack, c.adversary, c.variant) == (attack, adversary, variant)
    )


PAINTED = {
    name: replace(column("decoder", "upper only"), public=part) for name, part in AMOUNTS.items()
}
"""The papers' decoder on what the upper segment gets, by amount of public images."""


def row(method: str, **options: Value) -> Row:
    """Return a row of the matrix, or a method with further options under a name of its own."""
    if not options:
        return ROWS[method]
    base = ROWS[method]
    said = " ".join(
        f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in options.items()
    )
    return replace(
        base, name=f"{method} {said}", options=as_options({**dict(base.options), **options})
    )
