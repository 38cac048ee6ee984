"""Words are read from estimates of unknown scale and sign."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.attacks import read_tokens


@pytest.mark.parametrize("scale", [1.0, -4.0])
def test_words_are_read_up_to_scale_and_sign(scale: float) -> None:
    torch.manual_seed(0)
    table = torch.randn(1000, 64)
    ids = torch.randint(1000, (2, 30))
    words = read_tokens(scale * table[ids] + 0.3 * torch.randn(2, 30, 64) + 2.0, table)
    assert words.ids.shape == (2, 30)
    assert words.accuracy(ids) == 1.0
    assert words.similarity > 0.8
    noise = read_tokens(torch.randn(2, 30, 64), table)
    assert noise.accuracy(ids) < 0.1
    assert noise.similarity < words.similarity


def test_accuracy_is_the_share_of_places() -> None:
    words = read_tokens(torch.eye(4), torch.eye(4))
    assert words.accuracy(torch.tensor([0, 1, 2, 0])) == 0.75


def test_widths_must_fit() -> None:
    with pytest.raises(ValueError, match="have width 3 and the table 4"):
        read_tokens(torch.ones(2, 3), torch.ones(5, 4))
