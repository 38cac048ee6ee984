"""Attacks by gradients read the plain U shape, and nothing of noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flwr_splitmix.attacks.catalogue import text_attacks
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.texts import bisr, lamp
from flwr_splitmix.attacks.texts.bisr import Bisr, embeddings
from flwr_splitmix.attacks.texts.gradient_matching import (
    TailGradient,
    targets_of,
    text_of_labels,
)
from flwr_splitmix.attacks.texts.gradient_ratio import gradient_ratio
from flwr_splitmix.attacks.texts.lamp import Lamp, fluency, moves
from flwr_splitmix.attacks.texts.releasing import Released, release_texts
from flwr_splitmix.attacks.texts.tag import Tag
from flwr_splitmix.attacks.texts.view import TextAttack, TextKnowledge, TextRelease, TextView
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.segments.language import LanguageParts
from tests.attacks.texts.tiny_decoder import (
    BEGIN,
    PUBLIC,
    WORDS,
    attacked,
    guard,
    seeded,
    texts,
    tiny_parts,
    view_of,
)

PRIVATE = texts(6, 2)  # with fewer nothing beats a floor
SHORT = Budget("cpu", iterations=60)


@pytest.fixture(scope="module")
def parts() -> LanguageParts:
    return tiny_parts(1)


@pytest.fixture(scope="module")
def plain(parts: LanguageParts) -> Released:
    return release_texts(parts, Hiding(), PRIVATE, gradients=True)


def sham(released: Released) -> Released:
    """Return noise of the same shapes."""
    noise = torch.Generator().manual_seed(0)

    def like(shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, generator=noise)

    releases = [
        TextRelease(like(shape), like(shape), like(shape))
        for shape in (release.messages.shape for release in released.releases)
    ]
    return Released(releases, released.origins)


@pytest.mark.parametrize("kind", [Tag, Lamp, Bisr])
def test_it_reads_the_plain_u_shape(
    kind: type[TextAttack], parts: LanguageParts, plain: Released
) -> None:
    scored = attacked(kind(), parts, plain, SHORT)
    assert scored.measure("token accuracy").beats_floor
    assert scored.measure("ROUGE-L").beats_floor


@pytest.mark.parametrize("kind", [Tag, Lamp, Bisr])
def test_of_noise_it_reads_nothing(
    kind: type[TextAttack], parts: LanguageParts, plain: Released
) -> None:
    scored = attacked(kind(), parts, sham(plain), Budget("smoke"))
    assert not scored.measure("token accuracy").beats_floor
    assert not scored.measure("ROUGE-L").beats_floor


def target_of(release: TextRelease, parts: LanguageParts) -> TailGradient:
    (_, target), *_ = targets_of(release, view_of(parts, [release]).knowledge)
    return target


def one_hot(text: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(text[1:], WORDS).float()


def test_the_gradient_of_the_right_labels_is_the_one_that_came_back(
    parts: LanguageParts, plain: Released
) -> None:
    (release, *_), right = plain.releases, one_hot(PRIVATE[0])
    target = target_of(release, parts)
    assert release.gradients is not None
    torch.testing.assert_close(target.of(right), release.gradients[0])
    assert float(target.distance(right)) < 1e-3
    assert float(target.distance(right.flip(0))) > 0.1


class Indifferent:
    """A gradient that labels fit alike in any order, or best in one."""

    def __init__(self, best: torch.Tensor | None = None) -> None:
        self.best = best

    def distance(self, labels: torch.Tensor) -> torch.Tensor:
        fits = self.best is not None and torch.equal(labels.argmax(-1), self.best)
        return torch.tensor(-100.0 if fits else 1.0)


def test_of_two_orders_that_fit_alike_the_more_fluent_is_taken(
    parts: LanguageParts, plain: Released, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = PRIVATE[0][1:]
    monkeypatch.setattr(
        lamp, "moves", lambda length, count, generator: [torch.arange(length).flip(0)]
    )
    both = torch.stack([text_of_labels(order, BEGIN) for order in (words, words.flip(0))])
    better = int(fluency(parts, both).argmin())
    attack = Lamp()
    attack.fit(view_of(parts, plain.releases), PUBLIC, SHORT)

    def ordered(target: Any, first: torch.Tensor) -> torch.Tensor:
        logits = 50 * torch.nn.functional.one_hot(first, WORDS).float()
        scores = attack._reordered_logits(parts, BEGIN, target, lamp.STEPS_BETWEEN_TRIALS, logits)
        assert scores is not None
        return scores.argmax(-1)

    for first in (words, words.flip(0)):
        assert torch.equal(ordered(Indifferent(), first), both[better][1:])
        worse = both[1 - better][1:]
        assert torch.equal(ordered(Indifferent(worse), first), worse)


def test_of_a_step_of_several_texts_the_words_are_counted(parts: LanguageParts) -> None:
    short = PRIVATE[1][:9]
    released = release_texts(parts, Hiding(), [PRIVATE[0], short], batch_size=2, gradients=True)
    for release, text in zip(released.releases, (PRIVATE[0], short), strict=True):
        assert release.words == len(PRIVATE[0]) + len(short) - 2
        assert float(target_of(release, parts).distance(one_hot(text))) < 1e-3


def test_secret_tokens_of_a_step_that_is_not_full_are_no_words(parts: LanguageParts) -> None:
    with seeded():
        released = release_texts(
            parts, guard(secret_tokens=3), PRIVATE[:2], batch_size=2, gradients=True
        )
    plain = view_of(parts, []).knowledge
    knowledge = replace(plain, options={"secret_tokens": 3}, batch_size=16)
    for release in released.releases:
        words = {target.words for _, target in targets_of(release, knowledge)}
        assert words == {sum(len(text) - 1 for text in PRIVATE[:2])}


@pytest.mark.parametrize("sampler", ["convex", "rotated"])
def test_of_a_gradient_in_one_message_both_signs_are_tried(sampler: str) -> None:
    parts, kinds = tiny_parts(1), {}
    for kind in ("target", "one-message"):
        with seeded():
            kinds[kind] = release_texts(
                parts, guard(sampler=sampler, gradients=kind), PRIVATE[:1], gradients=True
            ).releases[0]
    assert torch.equal(kinds["target"].messages, kinds["one-message"].messages)
    knowledge = replace(view_of(parts, []).knowledge, options={"gradients": "one-message"})
    tried = dict(targets_of(kinds["one-message"], knowledge))
    assert tried.keys() == {
        way + sign
        for way in ("message 1", "message 2", "message 3", "mean")
        for sign in ("", ", other sign")
    }
    (_, whole), *_ = targets_of(kinds["target"], view_of(parts, []).knowledge)
    returned = whole.returned
    factors = {
        way: float((tried[way].returned * returned).sum() / returned.square().sum())
        for way in ("mean", "mean, other sign")
    }
    assert factors["mean"] == -factors["mean, other sign"]
    factor = max(factors.values())
    torch.testing.assert_close(tried["mean"].returned, factors["mean"] * returned)
    # Positive weights that sum to one have no greater sum of sizes; others have.
    assert factor == pytest.approx(1.0, rel=1e-5) if sampler == "convex" else factor > 1.001


def test_bisr_matches_both_signs_of_a_gradient_in_one_message(
    parts: LanguageParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    matched: list[TailGradient] = []

    def record(target: TailGradient, logits: torch.Tensor, *_: Any, **__: Any) -> Any:
        matched.append(target)
        return logits, 0.0

    monkeypatch.setattr(bisr, "match_labels", record)
    shape = (11, 5, parts.width)
    release = TextRelease(torch.randn(shape), torch.randn(shape), torch.randn(shape))
    knowledge = replace(view_of(parts, []).knowledge, options={"gradients": "one-message"})
    view = TextView("server", [release], knowledge)
    attack = Bisr()
    attack.fit(view, texts(8, 4), Budget("smoke", iterations=1))
    ways = [guess.way for guess in attack.run(view)]
    assert ways == list(dict(targets_of(release, knowledge)))
    assert len(matched) == len(ways) == 2 * (len(release.messages) + 1)
    for one, other in zip(matched[::2], matched[1::2], strict=True):
        assert torch.equal(one.returned, -other.returned)


def test_gradients_of_messages_sum_to_that_of_the_loss() -> None:
    parts = tiny_parts(1)
    with seeded():
        secret = release_texts(parts, guard(k=3, secret_tokens=3), PRIVATE[:1], gradients=True)
    (release,) = secret.releases
    assert release.words == len(PRIVATE[0]) + 3 - 1
    with seeded():
        plain = release_texts(parts, guard(k=3), PRIVATE[:1], gradients=True)
    (release,) = plain.releases
    assert release.outputs is not None
    assert release.gradients is not None
    ratio = gradient_ratio(release.outputs[:, None], release.gradients[:, None])
    weights = ratio.weights / ratio.weights.sum()
    torch.testing.assert_close(
        release.gradients.double(), weights[:, None, None] * release.gradients.double().sum(0),
        rtol=1e-3, atol=1e-7,
    )  # fmt: skip


def test_every_message_and_their_mean_are_matched() -> None:
    parts = tiny_parts(0)
    with seeded():
        released = release_texts(parts, guard(k=3), PRIVATE[:1], gradients=True)
    attack = Tag()
    attack.fit(view_of(parts, released.releases), None, Budget("smoke", iterations=2))
    guesses = attack.run(view_of(parts, released.releases))
    assert [guess.way for guess in guesses] == ["message 1", "message 2", "message 3", "mean"]
    assert {guess.ids.shape for guess in guesses} == {PRIVATE[0].shape}


@pytest.mark.parametrize("kind", [Tag, Lamp])
def test_gradients_of_classes_and_steps_without_gradients_have_no_such_attack(
    kind: type[TextAttack], parts: LanguageParts, plain: Released
) -> None:
    knowledge = TextKnowledge("USplitSL", {}, parts, begin=BEGIN, task="classification")
    with pytest.raises(NotApplicable, match="as its clients' labels are classes"):
        kind().fit(TextView("server", plain.releases, knowledge), None)
    short = [TextRelease(release.messages) for release in plain.releases]
    with pytest.raises(NotApplicable, match="no gradients and no outputs of its trunk"):
        kind().fit(view_of(parts, short), None)


def test_bisr_without_gradients_of_words_goes_on_without_them(
    parts: LanguageParts, plain: Released
) -> None:
    short = [TextRelease(release.messages) for release in plain.releases]
    scored = attacked(Bisr(), parts, Released(short, plain.origins), SHORT)
    assert scored.measure("token accuracy").beats_floor


def test_embeddings_and_what_places_add_are_what_the_head_begins_with() -> None:
    parts = tiny_parts(0)
    table, places = embeddings(parts, len(PRIVATE[0]))
    assert parts.head is not None
    torch.testing.assert_close(table[PRIVATE[0]] + places, parts.head(PRIVATE[0][None])[0])


def test_moves_are_other_orders_of_the_same_places() -> None:
    drawn = list(moves(9, 40, torch.Generator().manual_seed(0)))
    assert len(drawn) == 40
    assert all(sorted(order.tolist()) == list(range(9)) for order in drawn)
    end_first = drawn[3].tolist()
    start = end_first.index(0)
    assert end_first == [*range(9 - start, 9), *range(9 - start)]
    assert len({tuple(order.tolist()) for order in drawn}) > 20


def test_a_text_is_as_fluent_as_its_mean_loss(parts: LanguageParts) -> None:
    both = torch.stack(PRIVATE[:2])
    head, trunk, tail = parts.all_here()
    logits = tail(trunk(head(both)))
    each = [
        torch.nn.functional.cross_entropy(row[:-1], text[1:])
        for row, text in zip(logits, both, strict=True)
    ]
    torch.testing.assert_close(fluency(parts, both), torch.stack(each))


def test_the_first_word_is_the_beginning() -> None:
    assert text_of_labels(torch.tensor([7, 8]), 1).tolist() == [1, 7, 8]
    assert text_of_labels(torch.tensor([7, 8]), None).tolist() == [7, 7, 8]


def test_they_are_in_the_catalogue() -> None:
    assert {"tag", "lamp", "bisr"} <= text_attacks().keys()
