"""The pages with a matrix say in one place how to read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flwr_splitmix.experiments.privacy.kinds import Matrix
from flwr_splitmix.experiments.privacy.matrices import MATRICES

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_a_matrix_on_a_page_links_to_how_it_is_read(matrix: Matrix) -> None:
    """A legend of 110 words or more below each of five matrices would say the same five times."""
    anchor = matrix.guide.partition("attacks.md#")[2].partition(")")[0]
    headings = (DOCS / "attacks.md").read_text(encoding="utf-8").splitlines()
    assert anchor in {line.lstrip("# ").lower().replace(" ", "-") for line in headings}
    pages = [page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")]
    assert not [page for page in pages if matrix.legend in page]
    blocks = [
        block.partition("<!-- end of block -->")[0]
        for page in pages
        for block in page.split("<!-- matrix: ")[1:]
    ]
    matrix_blocks = [
        block for block in blocks if block.startswith("texts:") is (matrix.name == "texts")
    ]
    assert matrix_blocks
    assert all(block.rstrip().endswith(matrix.guide) for block in matrix_blocks)
