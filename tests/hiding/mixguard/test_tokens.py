"""Secret tokens: uniform, removable, and never outside a text's special tokens."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from flwr_splitmix.hiding.mixguard import SecretTokens
from flwr_splitmix.seeding import seeded_secrets

CLS, SEP, PAD, VOCAB = 1, 2, 0, 50
SPECIAL = (PAD, CLS, SEP)
WORD = 40

IDS = torch.tensor(
    [[CLS, 11, 12, 13, SEP], [CLS, 14, SEP, PAD, PAD], [PAD, PAD, CLS, 15, 16], [CLS, SEP, 0, 0, 0]]
)
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])


def tokens(count: int = 3) -> SecretTokens:
    return SecretTokens(count, VOCAB, SPECIAL, max_length=12)


def test_removal_undoes_insertion() -> None:
    inserted = tokens().insert(IDS, MASK)
    assert inserted.ids.shape == inserted.mask.shape == (4, 8)
    for new, old in ((inserted.ids, IDS), (inserted.mask, MASK)):
        assert torch.equal(tokens().remove(new, inserted.positions), old)
    hidden = torch.randn(4, 8, 6, requires_grad=True)
    removed = tokens().remove(hidden, inserted.positions)
    assert removed.shape == (4, 5, 6)
    removed.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert torch.equal(hidden.grad[:, :, 0].sum(1), torch.full((4,), 5.0))


def test_secret_tokens_are_attended_to() -> None:
    inserted = tokens().insert(IDS, MASK)
    secret = torch.ones_like(inserted.ids, dtype=torch.bool).scatter(
        1, inserted.positions, value=False
    )
    assert (secret.sum(1) == 3).all()
    assert (inserted.mask[secret] == 1).all()
    assert torch.equal(inserted.mask.sum(1), MASK.sum(1) + 3)


def test_special_tokens_keep_beginning_and_ending_a_text() -> None:
    for _ in range(50):
        inserted = tokens().insert(IDS, MASK)
        for ids, mask, old in zip(inserted.ids, inserted.mask, IDS, strict=True):
            text = ids[mask == 1].tolist()
            assert text[0] == CLS
            assert text[-1] == old[old != PAD][-1]  # a word too: a class may be read there
            assert sum(t in SPECIAL for t in text) == 1 + (text[-1] == SEP)
        padding = [(row == PAD).nonzero().flatten().tolist() for row in inserted.ids]
        assert padding == [[], [6, 7], [0, 1], [5, 6, 7]]  # where it was: right, or left


def test_places_are_a_uniform_subset() -> None:
    """Two tokens among three words: each of the 10 pairs of the 5 places, equally often."""
    ids = torch.full((20_000, 5), WORD)
    ids[:, 0], ids[:, 4] = CLS, SEP
    with seeded_secrets():
        torch.manual_seed(0)
        inserted = SecretTokens(2, VOCAB, SPECIAL).insert(ids, torch.ones_like(ids))
    secret = torch.ones_like(inserted.ids, dtype=torch.bool).scatter(
        1, inserted.positions, value=False
    )
    pairs = Counter(map(tuple, secret.nonzero()[:, 1].view(-1, 2).tolist()))
    assert {place for pair in pairs for place in pair} == {1, 2, 3, 4, 5}
    assert len(pairs) == 10
    assert all(abs(count - 2000) < 200 for count in pairs.values())


def test_words_are_uniform_over_the_vocabulary_without_special_ones() -> None:
    with seeded_secrets():
        torch.manual_seed(0)
        drawn = SecretTokens(1, 10, (0, 3)).draw((80_000,))
    counts = torch.bincount(drawn, minlength=10)
    assert counts[0] == counts[3] == 0
    assert (counts[[1, 2, 4, 5, 6, 7, 8, 9]] - 10_000).abs().max() < 450


@pytest.mark.fresh_secrets
def test_they_are_secret() -> None:
    torch.manual_seed(0)
    first = SecretTokens(20, 30_000).insert(IDS, MASK)
    torch.manual_seed(0)
    second = SecretTokens(20, 30_000).insert(IDS, MASK)
    assert not torch.equal(first.ids, second.ids)


def test_none_changes_nothing() -> None:
    inserted = tokens(0).insert(IDS, MASK)
    assert torch.equal(inserted.ids, IDS)
    assert torch.equal(inserted.mask, MASK)
    assert torch.equal(tokens(0).remove(inserted.ids, inserted.positions), IDS)


def test_bad_inputs_are_said() -> None:
    with pytest.raises(ValueError, match="5 tokens and 8 secret ones exceed max_length 12"):
        tokens(8).insert(IDS, MASK)
    assert tokens(7).insert(IDS, MASK).ids.shape == (4, 12)
    with pytest.raises(ValueError, match=r"mask has shape \(4,\); it must be that of ids"):
        tokens().insert(IDS, torch.zeros(4))
    with pytest.raises(ValueError, match="a text has no token"):
        tokens().insert(IDS, torch.zeros_like(MASK))
    with pytest.raises(ValueError, match="count is -1"):
        SecretTokens(-1, VOCAB)
    with pytest.raises(ValueError, match="at least one must be left to draw"):
        SecretTokens(1, 2, (0, 1))
