"""The noise of Split-N-Denoise: its length, its direction, and what a vocabulary bounds."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.hiding.snd import clip_to, largest_norm, metric_noise
from flwr_splitmix.hiding.snd import noise as module

stats = importlib.import_module("scipy.stats")
DRAWS = 4000


@pytest.mark.parametrize(("width", "eta"), [(2, 0.5), (16, 100.0), (64, 3.0)])
def test_lengths_are_gamma_with_shape_d_and_rate_eta(width: int, eta: float) -> None:
    lengths = metric_noise((DRAWS, width), eta, torch.float64).norm(dim=1).numpy()
    error = np.sqrt(width) / eta / np.sqrt(DRAWS)
    assert abs(lengths.mean() - width / eta) < 5 * error
    assert lengths.std() == pytest.approx(np.sqrt(width) / eta, rel=0.1)
    assert stats.kstest(lengths, stats.gamma(width, scale=1 / eta).cdf).pvalue > 1e-5


@pytest.mark.parametrize("width", [2, 16])
def test_directions_are_uniform_and_say_nothing_of_lengths(width: int) -> None:
    noise = metric_noise((DRAWS, width), 1.0, torch.float64)
    lengths = noise.norm(dim=1)
    units = (noise / lengths[:, None]).numpy()
    # The square of any coordinate of a uniform direction is Beta distributed.
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(width, width)))[0]
    for axis in (axes[0], np.eye(width)[-1]):
        along = units @ axis
        assert abs(along.mean()) < 5 / np.sqrt(width * DRAWS)
        beta = stats.beta(0.5, (width - 1) / 2)
        assert stats.kstest(along**2, beta.cdf).pvalue > 1e-5
    covariance = np.cov(units.T) * width
    assert np.abs(covariance - np.eye(width)).max() < 6 * np.sqrt(2 / DRAWS)
    assert abs(np.corrcoef(lengths, units[:, 0])[0, 1]) < 5 / np.sqrt(DRAWS)


@pytest.mark.fresh_secrets
def test_each_token_has_noise_of_its_own_and_nobody_can_repeat_it() -> None:
    torch.manual_seed(0)
    one = metric_noise((3, 5, 8), 1.0, torch.float32)
    torch.manual_seed(0)
    other = metric_noise((3, 5, 8), 1.0, torch.float32)
    assert one.dtype == torch.float32
    drawn = torch.cat([one, other]).reshape(-1, 8).tolist()
    assert len({tuple(each) for each in drawn}) == 30


def test_only_what_is_longer_is_shortened() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    clipped = clip_to(vectors, 2.0)
    torch.testing.assert_close(clipped, torch.tensor([[1.2, 1.6], [0.3, 0.4], [0.0, 0.0]]))


class Head(nn.Module):
    """Words, and a dropout that an honest measure leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 4)
        self.dropout = nn.Dropout(0.9)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.dropout(self.words(ids))
        return hidden


def test_the_largest_norm_is_over_all_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 4)
    head = Head().train()
    with torch.no_grad():
        head.words.weight[10] *= 10  # the last one, in a part of its own
    expected = float(head.words.weight.detach().norm(dim=1).max())
    assert largest_norm(head, 11, torch.device("cpu")) == pytest.approx(expected)
    assert largest_norm(head, 10, torch.device("cpu")) < expected / 2
    assert head.training


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_vocabulary_without_a_bound_is_refused(value: float) -> None:
    head = Head()
    with torch.no_grad():
        head.words.weight[:] = value
    with pytest.raises(ValueError, match="the largest norm of the vocabulary's hidden states is"):
        largest_norm(head, 11, torch.device("cpu"))
