"""Batches of Naive Mix as equations: where they have one solution, and what else is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.batch_ring import BatchRing, ring_of
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import ClientSide, DPForward, Hiding, NaiveMix

SOLVED = [(1, 0.5), (2, 0.4), (5, 0.5), (15, 0.5), (4, 0.3), (16, 0.7), (16, 0.501), (4, 1.0)]
LOST = [(2, 0.5), (4, 0.5), (16, 0.5)]


def states(size: int) -> Tensor:
    return torch.randn(size, 3, 4, generator=torch.Generator().manual_seed(size)).double()


class Plain(nn.Module):
    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return inputs


def sent(hidden: Tensor, lam: float) -> Tensor:
    """Return what a client of NaiveMix sends of hidden states."""
    hiding = NaiveMix(lam)
    hiding.attach(ClientSide(Plain(), Plain(), torch.device("cpu"), 4, len(hidden), 0, 0))
    mask = torch.ones(hidden.shape[:2], dtype=torch.int64)
    (message,) = hiding.obfuscate(MaskedBatch(hidden, mask, mask)).messages
    return message


@pytest.mark.parametrize(("size", "lam"), SOLVED)
def test_an_odd_batch_or_one_that_is_not_halved_has_one_solution(size: int, lam: float) -> None:
    ring, hidden = BatchRing(lam), states(size)
    assert not ring.loses(size)
    solved = ring.solve(sent(hidden, lam))
    torch.testing.assert_close(solved, hidden, atol=1e-9, rtol=0)
    assert ring.settle(solved, torch.zeros_like(hidden)) is solved


@pytest.mark.parametrize(("size", "lam"), LOST)
def test_an_even_batch_in_halves_loses_alternating_signs_and_nothing_else(
    size: int, lam: float
) -> None:
    ring, hidden = BatchRing(lam), states(size)
    assert ring.loses(size)
    assert int(torch.linalg.matrix_rank(ring.matrix(size))) == size - 1
    signs = torch.tensor([1.0, -1.0] * (size // 2)).double()
    lost = torch.einsum("b,btd->td", signs, hidden) / size
    solved = ring.solve(sent(hidden, lam))
    torch.testing.assert_close(solved + signs[:, None, None] * lost, hidden)


def test_two_examples_in_halves_are_only_known_by_their_mean() -> None:
    hidden = states(2)
    message = sent(hidden, 0.5)
    assert torch.equal(message[0], message[1])
    torch.testing.assert_close(BatchRing(0.5).solve(message), message)


def test_a_lost_direction_is_found_by_what_most_examples_are_expected_to_be() -> None:
    ring, hidden = BatchRing(0.5), states(8)
    solved = ring.solve(sent(hidden, 0.5))
    wrong = hidden.clone()
    wrong[[0, 3, 6]] = 7.0
    torch.testing.assert_close(ring.settle(solved, wrong), hidden)
    one = torch.full_like(hidden, torch.nan)
    one[4] = hidden[4]
    torch.testing.assert_close(ring.settle(solved, one), hidden)
    one[4, 1] = torch.nan  # of this place nothing is expected
    settled = ring.settle(solved, one)
    torch.testing.assert_close(settled[:, 1], solved[:, 1])
    torch.testing.assert_close(settled[:, 2], hidden[:, 2])


def test_only_hidings_that_mix_a_batch_have_a_ring() -> None:
    assert ring_of(NaiveMix(0.3)) == BatchRing(0.3)
    assert ring_of(Hiding()) is None
    assert ring_of(DPForward(8.0)) is None
