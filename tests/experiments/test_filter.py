"""Choosing cells by words."""

from __future__ import annotations

import pytest

from flwr_splitmix.experiments import EXPERIMENTS, SCALES, Cell, Entry, ExperimentError
from flwr_splitmix.experiments.filter import choose


@pytest.fixture
def pairs() -> list[tuple[Entry, Cell]]:
    return list(EXPERIMENTS["cutmixsl-table2"].cells(SCALES["cpu"], seeds=(0, 1)))


def rows(pairs: list[tuple[Entry, Cell]]) -> list[tuple[str, str, int]]:
    return [(entry.row, entry.column, cell.seed) for entry, cell in pairs]


def test_no_filter_asks_for_all(pairs: list[tuple[Entry, Cell]]) -> None:
    assert choose(pairs, " ") == pairs


def test_all_words_of_an_alternative_must_fit(pairs: list[tuple[Entry, Cell]]) -> None:
    assert rows(choose(pairs, "cutmixsl n=10 ALPHA=6, SFL n=2 seed=1")) == [
        ("CutMixSL (alpha = 6)", "n = 10", 0),
        ("SplitFed", "n = 2", 1),
        ("CutMixSL (alpha = 6)", "n = 10", 1),
    ]


def test_a_word_is_a_whole_word_unless_it_has_a_star(pairs: list[tuple[Entry, Cell]]) -> None:
    assert {entry.row for entry, _ in choose(pairs, "SFL")} == {"SplitFed"}
    assert {entry.row for entry, _ in choose(pairs, "*SFL alpha=6")} == {"CutMixSFL (alpha = 6)"}
    assert {entry.row for entry, _ in choose(pairs, "k_times=true")} == {
        "CutMixSL (k times, uniform)"
    }


def test_a_cell_is_chosen_by_its_id_and_by_the_papers_name_of_its_model(
    pairs: list[tuple[Entry, Cell]],
) -> None:
    assert choose(pairs, pairs[3][1].id) == [pairs[3]]
    assert choose(pairs, "vit-tiny") == pairs


def test_what_fits_no_cell_is_one_clear_error(pairs: list[tuple[Entry, Cell]]) -> None:
    with pytest.raises(ExperimentError, match=r"'n=11'.*n=10"):
        choose(pairs, "PSL, n=11")
