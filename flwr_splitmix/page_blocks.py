"""Generated blocks of a page that is otherwise written by hand."""

from __future__ import annotations


def replace_block(page: str, begin: str, end: str, text: str) -> str:
    """Return a page with another text between two comments.

    Parameters
    ----------
    begin, end
        The lines before and after the text, without line breaks. If the page has `begin` several
        times, each such block gets the text.
    text
        The new text; blank lines are put around it.

    Raises
    ------
    ValueError
        If the page has no such block, or one without an end.
    """
    before, *blocks = page.split(f"{begin}\n")
    if not blocks:
        raise ValueError(f"the page has no line {begin}")
    for block in blocks:
        _, ended, after = block.partition(end)
        if not ended:
            raise ValueError(f"a block that begins with {begin} has no line {end}")
        before += f"{begin}\n\n{text.strip()}\n\n{end}{after}"
    return before
