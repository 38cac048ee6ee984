"""NoPeek: its correlation against the definition, and that the head alone learns by it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import ClientError, Order, UShapeClient
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import NoPeek, no_peek
from flwr_splitmix.hiding.no_peek import distance_correlation
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from flwr_splitmix.testing.laws import check_same_tensors, check_ushape_equals_whole, sgd
from flwr_splitmix.testing.toy_texts import TextToy, text_toy

ORDER = Order(0, 7, 1, 1)


def by_definition(x: np.ndarray, y: np.ndarray) -> float:
    """Return the distance correlation as Székely et al. define it, one pair at a time."""
    n = len(x)

    def centred(samples: np.ndarray) -> list[list[float]]:
        d = [[math.dist(a, b) for b in samples] for a in samples]
        row = [sum(line) / n for line in d]
        column = [sum(d[k][j] for k in range(n)) / n for j in range(n)]
        grand = sum(row) / n
        return [[d[k][j] - row[k] - column[j] + grand for j in range(n)] for k in range(n)]

    a, b = centred(x), centred(y)

    def covariance(p: list[list[float]], q: list[list[float]]) -> float:
        total = sum(p[k][j] * q[k][j] for k in range(n) for j in range(n))
        return math.sqrt(max(total, 0.0)) / n

    return covariance(a, b) / math.sqrt(covariance(a, a) * covariance(b, b))


@pytest.mark.parametrize("kind", ["independent", "linear", "square", "repeated"])
def test_the_correlation_is_that_of_the_definition(kind: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(17, 4))
    if kind == "repeated":  # as words are
        x[5:12] = x[0]
    noise = rng.normal(size=(17, 3))
    y = {"linear": x[:, :3] * 2 + 0.1 * noise, "square": x[:, :1] ** 2}.get(kind, noise)
    actual = distance_correlation(torch.tensor(x), torch.tensor(y))
    assert float(actual) == pytest.approx(by_definition(x, y), rel=1e-12)


def test_what_it_says_of_dependence() -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(400, 1, generator=source, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=source, dtype=torch.float64)).Q
    wide = torch.randn(50, 6, generator=source, dtype=torch.float64)
    assert float(distance_correlation(wide, 3 * wide @ rotation + 1)) == pytest.approx(1)
    assert float(distance_correlation(x, torch.randn(400, 1, generator=source))) < 0.12
    assert float(distance_correlation(x, x**2)) > 0.4  # which no linear correlation shows
    assert float(distance_correlation(x, torch.ones(400, 2))) == 0


def test_its_gradient_is_that_of_differences() -> None:
    source = torch.Generator().manual_seed(1)
    x, y = (torch.randn(9, d, generator=source, dtype=torch.float64) for d in (3, 2))
    x[4] = x[2]
    assert torch.autograd.gradcheck(
        lambda z: distance_correlation(x, z), y.clone().requires_grad_()
    )
    same = y.clone()
    same[4] = same[2]  # two equal hidden states, as two equal words without context have
    z = same.requires_grad_()
    distance_correlation(x, z).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("shapes", [((4, 2), (5, 2)), ((4,), (4, 2)), ((0, 2), (0, 2))])
def test_what_are_no_pairs_is_named(shapes: Any) -> None:
    with pytest.raises(ValueError, match=r"they must be \(n, p\) and \(n, q\), n > 0"):
        distance_correlation(*(torch.zeros(shape) for shape in shapes))


def test_the_head_learns_by_loss_and_correlation() -> None:
    """One graph whose loss has `w DCor` added; its tail and trunk are the plain U shape's."""
    toy = TextToy(hiding=lambda: NoPeek(5.0), clients=2)
    check_ushape_equals_whole(USHAPE_STRATEGIES["NoPeekSL"], toy)
    ends = []
    for name, variant in (("NoPeekSL", toy), ("USplitSL", replace(toy, hiding=None))):
        strategy = USHAPE_STRATEGIES[name](
            variant.server(), device="cpu", steps_per_round=1, optimizer=sgd()
        )
        clients = variant.clients_for(strategy, sgd())
        strategy.fit(clients, 1)
        ends.append((clients[0], strategy.trunk.module.state_dict()))
    (peeking, trunk), (plain, plain_trunk) = ends
    check_same_tensors("trunk", trunk, plain_trunk, 0.0)
    check_same_tensors("tail", peeking.tail.state_dict(), plain.tail.state_dict(), 0.0)
    one, other = (client.head.get_parameter("words.weight") for client in (peeking, plain))
    assert float((one - other).detach().abs().max()) > 1e-3


class Context(nn.Module):
    """A head that learns: words, and a layer behind them."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.layer = nn.Linear(5, 5).double()

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.layer(self.first(ids, mask))
        return hidden


def test_the_weight_buys_independence() -> None:
    toy = TextToy(clients=1, dropout=0.0, width=5)
    correlations = []
    for weight in (0.0, 20.0):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            head = Context(toy.head())
        client = UShapeClient(
            head,
            toy.tail(),
            toy.texts(0, 12),
            batch_size=4,
            hiding=NoPeek(weight),
            optimizer=sgd(0.05),
            device="cpu",
        )
        strategy = USHAPE_STRATEGIES["NoPeekSL"](toy.server(), device="cpu", steps_per_round=25)
        strategy.fit([client], 1)
        correlations.append(strategy.rows[-1]["train_distance_correlation"])
    assert correlations[1] < 0.9 * correlations[0]


def test_hidden_states_that_are_the_embeddings_cannot_be_moved() -> None:
    """There the correlation is 1, its largest: a head without layers learns nothing by it."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(9, 3, generator=source, dtype=torch.float64)
    z = x.clone().requires_grad_()
    distance_correlation(x, z).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert float(z.grad.abs().max()) < 1e-12


def test_a_large_batch_is_measured_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noting(x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        return distance_correlation(x, y)

    monkeypatch.setattr(no_peek, "distance_correlation", noting)
    monkeypatch.setattr(no_peek, "MAX_TOKENS", 7)
    (client,) = text_toy("NoPeekSL", clients=1).clients_for()
    client.attach(ORDER, None)
    ids = torch.full((4, 5), 3)
    for tokens in (2, 1):
        mask = torch.zeros(4, 5, dtype=torch.int64)
        mask[:, :tokens] = 1
        client.hiding.obfuscate(MaskedBatch(ids, mask, ids))
    assert sizes == [7, 4]  # padding is never measured
    with torch.no_grad():
        assert client.hiding.obfuscate(MaskedBatch(ids, mask, ids)).penalty is None


def test_a_single_token_has_no_correlation() -> None:
    """As 0 in the round's mean it would look as if nothing of it could be read."""
    (client,) = text_toy("NoPeekSL", clients=1).clients_for(batch_size=1)
    client.attach(ORDER, None)
    ids = torch.full((1, 1), 3)
    assert client.hiding.obfuscate(MaskedBatch(ids, torch.ones_like(ids), ids)).penalty is None
    assert client.hiding.metrics() == {}


def test_a_head_without_words_is_refused() -> None:
    hiding = NoPeek()
    hiding.attach(
        replace(_side(replace(TextToy(clients=1), hiding=NoPeek).clients_for()[0]), head=Bag())
    )
    ids = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"NoPeek needs a head with an nn\.Embedding"):
        hiding.obfuscate(MaskedBatch(ids, ids, ids))


def test_a_head_that_learns_nothing_is_refused() -> None:
    """The penalty would have no effect."""
    toy = TextToy(hiding=NoPeek, clients=1)
    message = (
        "NoPeek works only by training the head, and this head learns nothing: take learns='all'"
    )
    with pytest.raises(ClientError, match=message):
        toy.clients_for(learns="tail")
    head = toy.head().requires_grad_(False)
    with pytest.raises(ClientError, match=message):
        UShapeClient(head, toy.tail(), toy.texts(0, 4), hiding=NoPeek(), device="cpu")


class Bag(nn.Module):
    """A head that has no embedding of its words."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Turn ids (b, T) into (b, T, 4)."""
        hidden: Tensor = self.layer(ids.unsqueeze(-1).float())
        return hidden


def _side(client: Any) -> Any:
    client.attach(ORDER, None)
    return client.hiding.side


@pytest.mark.parametrize("weight", [-0.1, math.inf, math.nan])
def test_a_weight_out_of_range_is_named(weight: float) -> None:
    with pytest.raises(ValueError, match=rf"dcor_weight is {weight}; it must be a finite number"):
        NoPeek(weight)
