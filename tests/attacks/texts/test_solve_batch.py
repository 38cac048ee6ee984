"""Texts that Naive Mix mixed: a batch is read where one message is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import Tensor

from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.texts.releasing import Released, fill_step, release_texts
from flwr_splitmix.attacks.texts.solve_batch import SolveTextBatch
from flwr_splitmix.attacks.texts.view import TextAttack, TextKnowledge, TextView
from flwr_splitmix.attacks.texts.vocabulary import Vocabulary
from flwr_splitmix.data.texts.text_set import TextSet
from flwr_splitmix.hiding import Hiding, NaiveMix
from flwr_splitmix.segments.language import LanguageParts
from tests.attacks.texts.tiny_decoder import (
    BEGIN,
    LENGTH,
    PUBLIC,
    guard,
    score_of,
    texts,
    tiny_parts,
)


def private(size: int) -> list[Tensor]:
    """Return texts of different lengths."""
    return [text[: LENGTH - 3 * (row % 3)] for row, text in enumerate(texts(size, 2))]


def read(
    attack: TextAttack, parts: LanguageParts, hiding: Hiding, released: Released
) -> tuple[float, bool]:
    """Return the share of words that an attack reads, and whether one more is beyond chance."""
    knowledge = TextKnowledge("a method", {}, parts, begin=BEGIN, client=lambda supports: hiding)
    view = TextView("server", released.releases, knowledge)
    attack.fit(view, PUBLIC, Budget("smoke"))
    measure = score_of(attack.run(view), parts, released).measure("token accuracy")
    return measure.value, measure.beats_floor


@pytest.mark.parametrize(
    ("head", "size", "lam"), [(0, 5, 0.5), (0, 6, 0.3), (0, 6, 0.5), (1, 6, 0.5), (1, 5, 0.5)]
)
def test_a_batch_is_read_where_one_message_is_not(head: int, size: int, lam: float) -> None:
    """Every batch but one of two texts in halves, also if its equations lack one."""
    parts = tiny_parts(head)
    released = release_texts(parts, NaiveMix(lam), private(size), batch_size=size)
    assert read(Vocabulary(), parts, NaiveMix(lam), released)[0] < 0.7
    assert read(SolveTextBatch(), parts, NaiveMix(lam), released)[0] > 0.98


def test_of_two_texts_in_halves_no_more_is_read_than_of_one_message() -> None:
    parts = tiny_parts(0)
    released = release_texts(parts, NaiveMix(0.5), texts(2, 2), batch_size=2)
    message = read(Vocabulary(), parts, NaiveMix(0.5), released)
    assert read(SolveTextBatch(), parts, NaiveMix(0.5), released) == message


def test_a_text_alone_is_read_from_its_message() -> None:
    parts = tiny_parts(0)
    released = release_texts(parts, NaiveMix(0.5), private(3))
    assert all(release.batch is None for release in released.releases)
    assert read(SolveTextBatch(), parts, NaiveMix(0.5), released)[0] > 0.98


@pytest.mark.parametrize("hiding", [Hiding, guard], ids=["nothing", "MixGuard"])
def test_there_is_no_batch_to_solve_where_none_is_mixed(hiding: type[Hiding]) -> None:
    parts = tiny_parts(0)
    released = release_texts(parts, Hiding(), private(2), batch_size=2)
    with pytest.raises(NotApplicable, match="a method does not mix the texts of a batch"):
        read(SolveTextBatch(), parts, hiding(), released)


def rows(chosen: Sequence[tuple[TextSet, int]], data: TextSet) -> list[int | None]:
    return [place if of is data else None for of, place in chosen]


def test_a_step_is_filled_with_other_texts_of_the_client() -> None:
    client_texts, other_texts = (TextSet(texts(5, seed), texts(5, seed)) for seed in (2, 3))
    chosen = [(client_texts, 1), (other_texts, 4)]
    assert rows(fill_step(chosen, client_texts, 4), client_texts) == [1, None, 0, 2]
    assert rows(fill_step(chosen, client_texts, 8), client_texts) == [1, None, 0, 2, 3, 4, 0, 2]
    assert fill_step(chosen, client_texts, 2) == chosen
