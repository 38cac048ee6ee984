"""Blocks of a page: text between two comments is generated, the rest is written by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.page_blocks import replace_block

END = "<!-- end of block -->"
_BEGIN = re.compile(r"^<!-- (\w+): (.*?) -->$", re.MULTILINE)
_BLOCK = re.compile(rf"(<!-- (\w+): ([^\n]*?) -->)\n(?:(?!<!-- ).)*{END}", re.DOTALL)

Maker = Callable[[str], str | None]
"""Makes a block's text from the words after its kind; None leaves the block as it is."""


def renewed(page: str, makers: Mapping[str, Maker]) -> tuple[str, list[str]]:
    """Return a page with its blocks renewed, and the blocks that were left as they are.

    A block begins with a line `<!-- KIND: WORDS -->` and ends with `<!-- end of block -->`.

    Parameters
    ----------
    makers
        Makers by kind.

    Raises
    ------
    ExperimentError
        If a block has an unknown kind, or its maker raises this error: the message names the
        block; also if a block has no end.
    """
    begun, blocks = len(_BEGIN.findall(page)), _BLOCK.findall(page)
    if len(blocks) != begun:
        raise ExperimentError(f"{begun} blocks begin and {len(blocks)} end; each ends with {END}")
    unchanged: list[str] = []
    for begin, kind, words in blocks:
        name = f"{kind}: {words}"
        if kind not in makers:
            raise ExperimentError(f"block {name!r}: kinds of blocks are {', '.join(makers)}")
        try:
            content = makers[kind](words)
        except ExperimentError as error:
            raise ExperimentError(f"block {name!r}: {error}") from error
        if content is None:
            unchanged.append(name)
        else:
            page = replace_block(page, begin, END, content)
    return page, unchanged
