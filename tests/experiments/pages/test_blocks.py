"""Blocks: text between their comments is rewritten, and nothing else."""

from __future__ import annotations

import pytest

from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.pages.blocks import renewed

PAGE = (
    "before\n\n<!-- upper: one two -->\nold\n<!-- end of block -->\nbetween\n"
    "<!-- none: x -->\n\nkept  \n<!-- end of block -->\nafter"
)


def nothing(words: str) -> str | None:
    return None


def test_blocks_are_written_anew_and_the_rest_stays() -> None:
    text, unchanged = renewed(PAGE, {"upper": str.upper, "none": nothing})
    assert text == PAGE.replace("\nold\n", "\n\nONE TWO\n\n")
    assert unchanged == ["none: x"]
    assert renewed(text, {"upper": str.upper, "none": nothing}) == (text, unchanged)


def test_a_block_of_no_kind_and_one_without_an_end_are_errors() -> None:
    with pytest.raises(ExperimentError, match="block 'none: x': kinds of blocks are upper"):
        renewed(PAGE, {"upper": str.upper})
    unended = PAGE.replace("old\n<!-- end of block -->", "old")
    with pytest.raises(ExperimentError, match="2 blocks begin and 1 end"):
        renewed(unended, {"upper": str.upper, "none": nothing})


def test_what_a_maker_raises_names_the_block() -> None:
    def refuse(words: str) -> str:
        raise ExperimentError("unknown scale 'x'")

    with pytest.raises(ExperimentError, match="block 'upper: one two': unknown scale 'x'"):
        renewed(PAGE, {"upper": refuse, "none": nothing})
