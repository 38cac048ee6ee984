"""Public texts by corpus: their source and number, and their part in a cell's identity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flwr_splitmix.data import DataError
from flwr_splitmix.data.texts.generated import GENERATED, generated_public
from flwr_splitmix.experiments import EXPERIMENTS, SCALES, variant
from flwr_splitmix.experiments.scales import STORIES
from flwr_splitmix.experiments.texts.data import load_cell_texts
from flwr_splitmix.experiments.texts.models import open_model_tokenizer
from flwr_splitmix.experiments.texts.public_corpora import open_public_pair

SMOKE = SCALES["smoke"]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name, word in (("wikitext_a", "town"), ("pg1_novel", "heart")):
        lines = [f"The {word} number {i} is far away today." for i in range(30)]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(lines))
    return str(tmp_path)


def opened(
    folder: str, *corpora: str, limit: int = 8, seed: int = 0
) -> tuple[list[str], list[str]]:
    calibration, supports = corpora
    return open_public_pair(
        folder,
        "classification",
        (calibration, supports),
        limit=limit,
        min_words=4,
        max_words=40,
        seed=seed,
    )


def test_each_use_has_texts_of_its_own_corpus(folder: str) -> None:
    calibration, supports = opened(folder, "wiki", "books")
    assert len(calibration) == len(supports) == 8
    assert all("town" in text for text in calibration)
    assert all("heart" in text for text in supports)
    everything, _ = opened(folder, "all", "books", limit=1000)
    assert len(everything) == 60


def test_a_seed_says_which_and_the_two_draws_differ(folder: str) -> None:
    assert opened(folder, "wiki", "wiki") == opened(folder, "wiki", "wiki")
    calibration, supports = opened(folder, "wiki", "wiki")
    assert calibration != supports
    assert opened(folder, "wiki", "wiki", seed=1) != (calibration, supports)


def test_made_up_corpora_share_no_text() -> None:
    wiki, books = opened(GENERATED, "wiki", "books", limit=1000)
    assert not set(wiki) & set(books)
    assert {*wiki, *books} == set(generated_public("classification"))


@pytest.mark.parametrize(
    ("corpora", "sentence"),
    [
        (("yelp", "wiki"), "unknown public corpus 'yelp'.*wiki, books, all"),
        (("wiki", "books"), "no file pg"),
    ],
)
def test_what_is_not_there_is_one_clear_error(
    corpora: tuple[str, str], sentence: str, folder: str
) -> None:
    (Path(folder) / "pg1_novel.txt").unlink()
    with pytest.raises(DataError, match=sentence):
        opened(folder, *corpora)


def test_a_pair_makes_another_cell_and_supports_come_first() -> None:
    plain = variant("MixGuard", {"k": 3}, model=STORIES, clients=1)
    paired = replace(plain, public_corpora=("wiki", "books"))
    cells = [SMOKE.cell(each, track="cola") for each in (plain, paired)]
    assert cells[0].id != cells[1].id
    assert "public_corpora" not in cells[0].identity["recipe"]
    assert "public=books" in cells[1].words
    tokenizer = open_model_tokenizer("tiny")
    loaded = [load_cell_texts(cell, GENERATED, tokenizer) for cell in cells]
    assert [texts.supports for texts in loaded] == [0, 8]
    assert [len(texts.public) for texts in loaded] == [8, 16]
    decoded = [tokenizer.decode(ids, skip_special_tokens=True) for ids in loaded[1].public.texts]
    books = generated_public("classification")[200:]
    assert all(any(book.startswith(text) for book in books) for text in decoded[:8])


def test_the_figure_has_the_papers_nine_pairs_and_runs_those_of_its_own_folder() -> None:
    figure = EXPERIMENTS["mixguard-fig4"]
    printed = {e.row: e.paper["CoLA accuracy"] for e in figure.entries if e.paper}
    assert printed == {
        "Pub: Wiki / Sup: Wiki": 85.1,
        "Pub: Wiki / Sup: Multi-Source": 84.1,
        "Pub: Wiki / Sup: Yelp": 84.4,
        "Pub: Multi-Source / Sup: Wiki": 85.0,
        "Pub: Multi-Source / Sup: Multi-Source": 85.5,
        "Pub: Multi-Source / Sup: Yelp": 84.6,
        "Pub: Yelp / Sup: Wiki": 85.3,
        "Pub: Yelp / Sup: Multi-Source": 85.7,
        "Pub: Yelp / Sup: Yelp": 85.1,
    }
    offered = {e.row: e.variant.public_corpora for e in figure.entries if e.variant is not None}
    assert offered["Pub: Multi-Source / Sup: Wiki"] == ("all", "wiki")
    assert offered["Pub: books / Sup: Wiki"] == ("books", "wiki")
    assert len(offered) == 7
