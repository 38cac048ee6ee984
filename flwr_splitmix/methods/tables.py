"""The tables of methods in pages, made from the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flwr_splitmix.methods import METHODS, ShapeName, plain_options, strategy_class
from flwr_splitmix.page_blocks import replace_block


def methods_table(shape: ShapeName) -> str:
    """Return the Markdown table of what the methods of one shape do and protect."""
    first, last = ("cut", "protects") if shape == "L" else ("cuts", "stays with the client")
    return _markdown(
        ("strategies", f"what happens at the {first}", f"crosses the {first}, up", last),
        [
            (_code(method.names), method.at_cut, method.up, method.protects)
            for method in METHODS
            if method.shape == shape
        ],
    )


def options_table() -> str:
    """Return the Markdown table of the L shape's strategies with the options of their own.

    Options are written as keys of a run configuration. Strategies about which nothing else is to be
    said are in one row.
    """
    rows: dict[tuple[str, str], list[str]] = {}
    for method in METHODS:
        if method.shape == "L":
            keys = [o.replace("_", "-") for o in plain_options(strategy_class(method.name))]
            rows.setdefault((method.up, _code(keys) or "none"), []).extend(method.names)
    return _markdown(
        ("strategies", "what crosses the cut, up", "own keys"),
        [(_code(names), up, keys) for (up, keys), names in rows.items()],
    )


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "methods, L shape": lambda: methods_table("L"),
    "methods, U shape": lambda: methods_table("U"),
    "options": options_table,
}
"""The tables by the names that they have in pages."""


def renewed(page: str) -> str:
    """Return a page with its tables as the catalogue has them.

    A table stands between the lines `<!-- table: NAME -->` and `<!-- end of table -->`.

    Raises
    ------
    ValueError
        If a table's end is missing.
    """
    for name, make in TABLES.items():
        begin = f"<!-- table: {name} -->"
        if begin in page:
            page = replace_block(page, begin, "<!-- end of table -->", make())
    return page
