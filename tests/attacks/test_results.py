"""Results of attacks on disk, and what a paper has beside them."""

from __future__ import annotations

import pytest

from flwr_splitmix.attacks.results import Kept, paper_note


@pytest.mark.parametrize(("method", "error"), [("CutMixSFL", "0.0458"), ("SFL", "0.0091")])
def test_the_papers_number_names_its_method_and_its_adversary(method: str, error: str) -> None:
    note = paper_note(Kept(method, "decoder", "server", "cpu", [], None))
    assert error in note
    assert "the adversary 'upper only'" in note
    assert paper_note(Kept(method, "linear", "server", "cpu", [], None)) == ""
