"""Attacks on texts read what nothing hides, are at the floor for noise, and undo MixGuard."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from flwr_splitmix.attacks.catalogue import text_attacks
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.scoring.text_scores import TextFloors, score_texts
from flwr_splitmix.attacks.texts.key_search import KeySearch, search
from flwr_splitmix.attacks.texts.releasing import Released, release_texts
from flwr_splitmix.attacks.texts.sip import Sip
from flwr_splitmix.attacks.texts.view import TextGuess, TextRelease
from flwr_splitmix.attacks.texts.vocabulary import Vocabulary
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.scoring.answers import meteor
from flwr_splitmix.seeding import seeded_secrets
from flwr_splitmix.segments.language import LanguageParts
from tests.attacks.texts.tiny_decoder import (
    BEGIN,
    PUBLIC,
    WORDS,
    attacked,
    decode,
    guard,
    seeded,
    texts,
    tiny_parts,
    view_of,
)

PRIVATE = texts(6, 2)  # with fewer nothing beats a floor


@pytest.fixture(scope="module", params=[0, 1], ids=["cut 0", "cut 1"])
def parts(request: pytest.FixtureRequest) -> LanguageParts:
    return tiny_parts(request.param)


def test_the_vocabulary_reads_every_word_that_nothing_hides(parts: LanguageParts) -> None:
    scored = attacked(Vocabulary(), parts, release_texts(parts, Hiding(), PRIVATE))
    # Behind a layer one word of 90 is none of those that the table gives.
    assert scored.measure("token accuracy").value > (0.98 if parts.cut.head else 0.999)
    assert scored.measure("exact").value > (0.8 if parts.cut.head else 0.999)
    assert scored.measure("ROUGE-L").beats_floor


def test_of_noise_nothing_is_read(parts: LanguageParts) -> None:
    real = release_texts(parts, Hiding(), PRIVATE)
    noise = torch.Generator().manual_seed(0)
    sham = [TextRelease(torch.randn(r.messages.shape, generator=noise)) for r in real.releases]
    scored = attacked(Vocabulary(), parts, Released(sham, real.origins))
    assert scored.measure("token accuracy").value < 0.1
    assert not scored.measure("token accuracy").beats_floor


@pytest.mark.parametrize("k", [3, 10])
def test_one_text_is_enough_to_undo_its_mixing(k: int, parts: LanguageParts) -> None:
    with seeded():
        released = release_texts(parts, guard(k=k), PRIVATE)
    scored = attacked(KeySearch(), parts, released)
    assert scored.measure("token accuracy").value > 0.9
    if k > 3 and parts.cut.head == 0:
        # No other direction leaves a text alone, so the attack knows the target. (Behind layers
        # states of other texts are only near, which 15 tokens of width 48 do not always tell.)
        assert scored.measure("token accuracy, picked").value > 0.9


def test_the_search_returns_different_texts_and_the_exact_direction() -> None:
    parts = tiny_parts(0)
    with seeded_secrets():
        torch.manual_seed(1)
        released = release_texts(parts, guard(k=10), PRIVATE[:1])
    view = view_of(parts, released.releases)
    attack = KeySearch()
    attack.fit(view, PUBLIC, Budget("smoke"))
    generator = torch.Generator().manual_seed(0)
    first, *others = search(
        released.releases[0].messages, attack.states, generator=generator, skip=1
    )
    truth = released.origins[0].states
    cosine = torch.cosine_similarity(first.estimate.flatten(), truth.flatten(), dim=0)
    assert float(cosine.abs()) > 0.999
    assert first.fit > 0.999 > max((other.fit for other in others), default=0)


def test_sip_learns_to_read_hidden_states() -> None:
    parts = tiny_parts(1)
    short = Budget("paper", iterations=90)
    scored = attacked(Sip(), parts, release_texts(parts, Hiding(), PRIVATE), short)
    assert scored.measure("token accuracy").beats_floor


def test_secret_tokens_do_not_count_as_the_text() -> None:
    parts = tiny_parts(0)
    with seeded():
        released = release_texts(parts, guard(k=3, secret_tokens=5), PRIVATE[:1])
    origin = released.origins[0]
    assert released.releases[0].messages.shape[1] == len(PRIVATE[0]) + 5
    table = Vocabulary()
    table.fit(view_of(parts, released.releases), None)
    assert torch.equal(table.reader.read(origin.states)[0], PRIVATE[0])


def test_a_step_returns_what_a_client_would() -> None:
    """The plain U shape's gradient is that of the loss behind the tail."""
    parts = tiny_parts(1)
    released = release_texts(parts, Hiding(), PRIVATE[:1], gradients=True)
    (release,) = released.releases
    assert release.outputs is not None
    assert release.gradients is not None
    _, trunk, tail = parts.all_here()
    hidden = trunk(release.messages[0][None]).requires_grad_()
    logits = tail(hidden)[0, :-1]
    loss = torch.nn.functional.cross_entropy(logits, PRIVATE[0][1:])
    (gradient,) = torch.autograd.grad(loss, hidden)
    torch.testing.assert_close(release.gradients[0], gradient[0])
    torch.testing.assert_close(release.outputs[0], hidden[0].detach())


def test_an_attack_says_what_its_view_lacks() -> None:
    parts = tiny_parts(0)
    view = view_of(parts, release_texts(parts, Hiding(), PRIVATE[:1]).releases, "USplitSL")
    with pytest.raises(NotApplicable, match="USplitSL has one message of a text only"):
        KeySearch().fit(view, PUBLIC)
    with pytest.raises(NotApplicable, match="needs public texts"):
        Sip().fit(view, [])


def test_scores_are_exact_for_known_guesses() -> None:
    parts = tiny_parts(0)
    released = release_texts(parts, Hiding(), PRIVATE[:2])
    half = PRIVATE[0].clone()
    half[-5:] = 299
    guesses = [
        TextGuess(0, half, 0.9, "message 1"),
        TextGuess(0, torch.full_like(half, 298), 1.0, "mean"),
        TextGuess(1, PRIVATE[1], 0.5, "message 1"),
    ]
    scored = score_texts(guesses, released.origins, TextFloors(parts, PUBLIC, BEGIN), decode)
    assert [row["token_accuracy"] for row in scored.rows] == pytest.approx([10 / 15, 1])
    assert scored.measure("ROUGE-L").value == pytest.approx((10 / 15 + 1) / 2)
    guessed = [decode(ids[1:].tolist()) for ids in (half, PRIVATE[1])]
    right = [decode(ids[1:].tolist()) for ids in PRIVATE[:2]]
    assert scored.measure("METEOR").value == pytest.approx(meteor(guessed, right))
    assert 0.5 < meteor(guessed, right) < 1
    assert scored.measure("exact").value == 0.5
    assert scored.rows[0]["picked_way"] == "mean"
    assert scored.rows[0]["picked_token_accuracy"] == 0
    with pytest.raises(ValueError, match="no guess"):
        score_texts([], released.origins, TextFloors(parts, PUBLIC, BEGIN), decode)


class Silent(TextFloors):
    """Floors whose model writes nothing, which takes no time."""

    def _sample(
        self, length: int, generators: Sequence[torch.Generator], number: int
    ) -> torch.Tensor:
        return torch.zeros(len(generators), length, dtype=torch.int64)


@pytest.mark.parametrize("count", [1, 4, 8])
def test_as_many_blind_guesses_as_one_likes_stay_at_their_floor(count: int) -> None:
    parts, private = tiny_parts(0), texts(60, 5)
    released = release_texts(parts, Hiding(), private)
    frequent = torch.cat(PUBLIC).bincount()
    frequent[BEGIN] = 0
    guesses = [
        TextGuess(number, torch.full_like(text, int(word)), -float(rank), f"word {rank}")
        for number, text in enumerate(private)
        for rank, word in enumerate(frequent.argsort(descending=True)[:count])
    ]
    scored = score_texts(guesses, released.origins, Silent(parts, PUBLIC, BEGIN), decode)
    for metric in ("token accuracy", "ROUGE-L"):
        assert scored.measure(metric).value > 0.1
        assert not scored.measure(metric).beats_floor
        assert scored.measure(metric).floor >= scored.measure(f"{metric}, picked").floor
    assert not scored.measure("token accuracy, picked").beats_floor


def test_more_draws_do_not_change_the_first_blind_guess() -> None:
    floors = TextFloors(tiny_parts(0), PUBLIC, BEGIN)
    (first,), (again, second) = floors.guesses(16, 3), floors.guesses(16, 3, draws=2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], second[name]) for name in first)
    far = Silent(tiny_parts(0), PUBLIC, BEGIN).guesses(16, 3, draws=WORDS + 1)[-1]
    assert len(far["most frequent token"]) == 16


def test_floors_of_neighbouring_seeds_are_other_draws() -> None:
    one, other = (TextFloors(tiny_parts(0), PUBLIC, BEGIN, seed=seed) for seed in (0, 1))
    for number in range(3):
        (next_text,), (this,) = one.guesses(16, number + 1), other.guesses(16, number)
        assert not torch.equal(next_text["random token"], this["random token"])
        assert not torch.equal(next_text["language model"], this["language model"])


def test_the_attacks_are_listed_by_their_modules() -> None:
    attacks = text_attacks()
    assert {"key-search", "sip", "vocabulary"} <= attacks.keys()
    assert all(kind.source and kind.__doc__ for kind in attacks.values())
