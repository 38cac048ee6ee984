"""Words read with a head: behind layers, of any scale and sign, and through noise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.texts.word_pairs import WordPairs
from flwr_splitmix.attacks.texts.word_reader import WordReader
from flwr_splitmix.segments.language import LanguageParts
from tests.attacks.texts.tiny_decoder import BEGIN, LENGTH, WORDS, grammatical, texts, tiny_parts

PRIVATE = texts(6, 2)


def states_of(parts: LanguageParts, ids: Tensor) -> Tensor:
    assert parts.head is not None
    states: Tensor = parts.head(ids[None])[0]
    return states


def share_read(reader: WordReader, parts: LanguageParts, scale: float = 1.0) -> float:
    read = [reader.read(scale * states_of(parts, ids))[0] == ids for ids in PRIVATE]
    return float(torch.stack(read).double().mean())


def test_a_word_is_found_whose_state_alone_is_not_near() -> None:
    """The words before it have moved its state, as they move those of all words."""
    parts = tiny_parts(2)
    assert share_read(WordReader(parts, BEGIN, corrections=0), parts) < 0.85
    assert share_read(WordReader(parts, BEGIN), parts) > 0.95


@pytest.mark.parametrize(("head", "begin"), [(0, BEGIN), (0, None), (1, BEGIN)])
def test_states_are_read_up_to_scale_and_sign(head: int, begin: int | None) -> None:
    parts = tiny_parts(head)
    reader = WordReader(parts, begin)
    for scale in (1.0, -3.0, 0.01):
        assert share_read(reader, parts, scale) > 0.98
    ids, fit = reader.read(-2 * states_of(parts, PRIVATE[0]))
    assert torch.equal(ids, PRIVATE[0])
    assert fit == pytest.approx(1, abs=1e-4)


def test_each_place_may_have_a_scale_of_its_own() -> None:
    parts = tiny_parts(1)
    scales = torch.linspace(0.2, 3, LENGTH)[:, None]
    ids, _ = WordReader(parts, BEGIN).read(scales * states_of(parts, PRIVATE[0]))
    assert torch.equal(ids, PRIVATE[0])


@pytest.mark.parametrize(("head", "strength"), [(0, 2), (1, 1)])
def test_through_noise_the_words_before_tell_the_next(head: int, strength: int) -> None:
    parts = tiny_parts(head)
    reader, pairs = WordReader(parts, BEGIN), WordPairs(grammatical(400, 1), WORDS)
    noise = strength * float(reader.table.std())
    torch.manual_seed(0)
    right, nearest = [], []
    for ids in grammatical(6, 2):
        states = states_of(parts, ids)
        states = states + noise * torch.randn(states.shape)
        read, fit = reader.read_noisy(states, noise, pairs)
        assert 0 < fit < 1
        right.append(read == ids)
        nearest.append(reader.read(states)[0] == ids)
    assert torch.stack(right).double().mean() > 0.9
    assert torch.stack(nearest).double().mean() < torch.stack(right).double().mean() - 0.05


def test_words_before_help_where_states_do_not_fit_and_change_nothing_where_they_do() -> None:
    parts = tiny_parts(1)
    reader, pairs = WordReader(parts, BEGIN), WordPairs(grammatical(400, 1), WORDS)
    for ids in PRIVATE[:3]:  # texts of another kind than the public ones
        assert torch.equal(reader.read(states_of(parts, ids), pairs)[0], ids)
    torch.manual_seed(0)
    alone, with_pairs = [], []
    for ids in grammatical(6, 2):
        states = states_of(parts, ids)
        states = -5 * (states + float(reader.table.std()) * torch.randn(states.shape))
        alone.append(reader.read(states)[0] == ids)
        with_pairs.append(reader.read(states, pairs)[0] == ids)
    assert torch.stack(with_pairs).double().mean() > torch.stack(alone).double().mean() + 0.05


def test_pairs_of_words_are_counted_and_smoothed() -> None:
    pairs = WordPairs(
        [torch.tensor([1, 5, 6]), torch.tensor([1, 5, 7]), torch.tensor([1, 6, 5])], 10
    )
    shares = pairs.log_shares(torch.tensor([5, 1, 9, -1])).exp()
    torch.testing.assert_close(shares.sum(1), torch.ones(4))
    rest = 0.3 * torch.tensor([0, 0, 0, 0, 0, 3, 2, 1, 0, 0]) / 6 + 0.01
    torch.testing.assert_close(shares[0, 6], 0.6 * 0.5 + rest[6])
    torch.testing.assert_close(shares[1, 5], 0.6 * 2 / 3 + rest[5])
    torch.testing.assert_close(shares[2], rest / rest.sum())  # no pair begins with it
    assert torch.equal(shares[2], shares[3])
    many = torch.arange(1200)
    again = WordPairs([many], 1200)
    assert int(again.log_shares(many[:-1]).argmax(1)[-1]) == 1199
    assert torch.equal(again.log_shares(many[:-1]).argmax(1), many[1:])
