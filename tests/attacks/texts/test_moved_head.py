"""A head that has moved is learned from plain states of public texts, and then read with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.texts.key_search import KeySearch
from flwr_splitmix.attacks.texts.moved_head import likely_words, moved_head
from flwr_splitmix.attacks.texts.releasing import release_texts
from flwr_splitmix.attacks.texts.view import PublicRelease, head_states
from flwr_splitmix.attacks.texts.vocabulary import ReaderAttack, Vocabulary
from flwr_splitmix.attacks.texts.word_pairs import WordPairs
from flwr_splitmix.attacks.texts.word_reader import WordReader
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.segments.language import LanguageParts
from tests.attacks.texts.tiny_decoder import (
    BEGIN,
    WORDS,
    grammatical,
    guard,
    score_of,
    seeded,
    tiny_parts,
    view_of,
)

PRIVATE, OWN, PUBLIC = grammatical(6, 2), grammatical(48, 3), grammatical(400, 1)
SCALE, NOISE = 0.3, 0.05


def moved(parts: LanguageParts, far: float = 0.015) -> LanguageParts:
    """Return parts whose head training has moved."""
    head, rng = copy.deepcopy(parts.head), torch.Generator().manual_seed(5)
    assert head is not None
    with torch.no_grad():
        for weights in head.parameters():
            weights.add_(far * torch.randn(weights.shape, generator=rng))
    return replace(parts, head=head)


def shown(
    parts: LanguageParts, some: Sequence[Tensor] = OWN, messages: int = 1
) -> list[PublicRelease]:
    """Return public texts as a client with this head sends them: with noise, and plain."""
    rng = torch.Generator().manual_seed(6)
    releases = []
    for ids in OWN:
        assert parts.head is not None
        states = parts.head(ids[None])[0]
        noisy = states + NOISE * torch.randn((messages, *states.shape), generator=rng)
        releases.append(PublicRelease(SCALE * noisy, states))
    return releases


def test_words_behind_a_moved_head_are_told_by_their_states_and_pairs() -> None:
    parts = tiny_parts(1)
    reader, pairs = WordReader(parts, BEGIN), WordPairs(PUBLIC, WORDS)
    public_releases = shown(moved(parts))
    right = [
        likely_words(one.states, reader, pairs) == ids
        for one, ids in zip(public_releases, OWN, strict=True)
    ]
    assert torch.stack(right).double().mean() > 0.9
    alone = torch.randn(1, 48)
    assert likely_words(alone, WordReader(parts, None), pairs).shape == (1,)


def test_a_head_scale_and_noise_are_learned_of_public_texts() -> None:
    parts = tiny_parts(1)
    reader, pairs = WordReader(parts, BEGIN), WordPairs(PUBLIC, WORDS)
    before = copy.deepcopy(parts.head)
    assert before is not None
    learned = moved_head(parts, reader, shown(moved(parts)), pairs, Budget("cpu"))
    assert parts.head is not None
    for weights, same in zip(parts.head.parameters(), before.parameters(), strict=True):
        assert torch.equal(weights, same)
        assert not weights.requires_grad
    head, true = learned.parts.head, moved(parts).head
    assert head is not None
    assert true is not None
    ids = torch.stack(PRIVATE)
    expected = true(ids)[:, 1:]

    def error(of: torch.nn.Module) -> float:
        return float((of(ids)[:, 1:] - expected).norm() / expected.norm())

    assert error(head) < 0.75 * error(parts.head)
    assert learned.scale == pytest.approx(SCALE, rel=0.1)
    assert learned.noise is not None
    assert NOISE < learned.noise < 3 * NOISE
    several = moved_head(parts, reader, shown(moved(parts), messages=3), pairs, Budget("smoke"))
    assert (several.scale, several.noise) == (None, None)


def test_the_base_head_stays_where_it_fits_better() -> None:
    parts = tiny_parts(1)
    reader, pairs = WordReader(parts, BEGIN), WordPairs(PUBLIC, WORDS)
    learned = moved_head(parts, reader, shown(parts), pairs, Budget("smoke"))
    assert learned.parts.head is parts.head
    once = moved_head(parts, reader, shown(parts)[:1], pairs, Budget("smoke"))
    assert once.parts.head is parts.head


@pytest.mark.parametrize("mixed", [False, True])
def test_an_attack_reads_with_the_learned_head(mixed: bool) -> None:
    parts = tiny_parts(1)
    trained = moved(parts, 0.03)
    with seeded():
        hiding = (
            guard(grammatical(40, 4), k=3, sampler="convex", support_scale=0.2)
            if mixed
            else Hiding()
        )
        released = release_texts(trained, hiding, PRIVATE)
    public_releases = shown(trained, messages=3 if mixed else 1)
    if not mixed:
        released = replace(
            released,
            releases=[replace(one, messages=SCALE * one.messages) for one in released.releases],
        )
    view = view_of(parts, released.releases)

    def fitted(attack: ReaderAttack, public: Sequence[PublicRelease]) -> ReaderAttack:
        attack.fit(replace(view, public_releases=public), PUBLIC, Budget("cpu"))
        return attack

    attack = fitted(Vocabulary(), public_releases)
    assert attack.moved is not None
    assert attack.reader.head is attack.parts.head is not parts.head
    assert (attack.moved.scale is None) is mixed
    scored = score_of(attack.run(view), parts, released)
    assert scored.measure("token accuracy").value > 0.9
    alone = fitted(Vocabulary(), [])
    assert alone.moved is None
    assert alone.reader.head is parts.head
    if mixed:
        search = fitted(KeySearch(), public_releases)
        assert isinstance(search, KeySearch)
        public_states = head_states(search.parts, PUBLIC[0])[1:]
        torch.testing.assert_close(search.states[: len(public_states)], public_states)
