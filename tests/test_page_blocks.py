"""A block's text is replaced between its comments, and nothing else."""

from __future__ import annotations

import pytest

from flwr_splitmix.page_blocks import replace_block

BEGIN, END = "<!-- table: x -->", "<!-- end -->"


def test_what_stands_around_a_block_stays() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nbetween\n<!-- table: y -->\nown\n{END}\nafter"
    new = replace_block(page, BEGIN, END, "\nnew\n\nlines\n")
    assert new == page.replace("\nold\n", "\n\nnew\n\nlines\n\n")
    assert replace_block(new, BEGIN, END, "new\n\nlines") == new


def test_blocks_that_begin_alike_get_the_same_text() -> None:
    page = f"{BEGIN}\none\n{END}\n{BEGIN}\ntwo\n{END}\n"
    assert replace_block(page, BEGIN, END, "new") == f"{BEGIN}\n\nnew\n\n{END}\n" * 2


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("no block", "the page has no line <!-- table: x -->"),
        (f"{BEGIN}\n", "begins with <!-- table: x --> has no line <!-- end -->"),
        (f"{BEGIN}\n{BEGIN}\n{END}\n", "begins with <!-- table: x --> has no line <!-- end -->"),
    ],
)
def test_a_block_that_is_missing_or_has_no_end_is_an_error(page: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace_block(page, BEGIN, END, "new")
