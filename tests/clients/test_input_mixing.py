"""Images mixed before the lower segment: pixel by pixel, from the right batches, soft labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.clients import ClientError, Order, SplitClient
from flwr_splitmix.clients.split.input_mixing import mix_inputs
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import Example
from flwr_splitmix.mixers import (
    BoxShare,
    FullShare,
    InputShare,
    PatchShare,
    Share,
    WeightedShare,
)
from flwr_splitmix.testing.toy import Toy

B, C, L = 3, 2, 4
TOY = Toy(clients=3, dropout=0.0)
SEED = 9


def share_of(*parts: tuple[int, Share], rows: int = 2, columns: int = 3) -> InputShare:
    return InputShare(rows=rows, columns=columns, classes=L, parts=parts, seed=4)


def images(height: int = 8, width: int = 12) -> dict[int, Example]:
    torch.manual_seed(0)
    return {
        client: (torch.randn(B, C, height, width), (torch.arange(B) + client) % L)
        for client in range(2)
    }


def box(inside: bool, lam: float, **sides: Any) -> BoxShare:
    return BoxShare(lam=lam, patches=6, columns=3, inside=inside, **sides)


@pytest.mark.parametrize(("height", "width"), [(4, 4), (3, 5)])
def test_boxes_of_cells_are_boxes_of_pixels(height: int, width: int) -> None:
    """Cells of a 2 x 3 grid are squares or other rectangles."""
    sides = {"top": 1, "bottom": 2, "left": 1, "right": 3}
    batches = images(2 * height, 3 * width)
    share = share_of((0, box(False, 4 / 6, **sides)), (1, box(True, 2 / 6, **sides)))
    mixed, soft = mix_inputs(share, batches.__getitem__)
    expected = batches[0][0].clone()
    expected[:, :, height:, width:] = batches[1][0][:, :, height:, width:]
    assert torch.equal(mixed, expected)
    hot = [F.one_hot(labels, L) for _, labels in batches.values()]
    torch.testing.assert_close(soft, 4 / 6 * hot[0] + 2 / 6 * hot[1])


def test_random_cells_are_whole_in_every_channel() -> None:
    halves = [
        PatchShare(lam=0.5, patches=6, seed=3, start=start, stop=start + 3) for start in (0, 3)
    ]
    batches = images()
    mixed, _ = mix_inputs(share_of((0, halves[0]), (1, halves[1])), batches.__getitem__)
    for client, half in enumerate(halves):
        for cell in half.positions(B).tolist():
            top, left = 4 * (cell // 3), 4 * (cell % 3)
            region = np.s_[:, :, top : top + 4, left : left + 4]
            assert torch.equal(mixed[region], batches[client][0][region])


def test_weighted_sums_of_images() -> None:
    batches = images()
    share = share_of((0, WeightedShare(lam=0.75)), (1, WeightedShare(lam=0.25)))
    mixed, soft = mix_inputs(share, batches.__getitem__)
    torch.testing.assert_close(mixed, 0.75 * batches[0][0] + 0.25 * batches[1][0])
    torch.testing.assert_close(soft.sum(1), torch.ones(B))


@pytest.mark.parametrize("shape", [(7,), (2, 50), (3, 37, 53), (2, 3, 4, 5)])
def test_inputs_of_any_shape_are_one_cell(shape: tuple[int, ...]) -> None:
    """Images need no square cells for a weighted sum, and series no number of rows."""
    batches = {client: (torch.randn(B, *shape), torch.zeros(B).long()) for client in (0, 1)}
    parts = ((0, WeightedShare(lam=0.75)), (1, WeightedShare(lam=0.25)))
    mixed, _ = mix_inputs(share_of(*parts, rows=1, columns=1), batches.__getitem__)
    torch.testing.assert_close(mixed, 0.75 * batches[0][0] + 0.25 * batches[1][0])


def test_integers_are_cut_but_not_weighted() -> None:
    """Soft labels are floats all the same, and the error names a remedy."""
    batches = {client: ((100 * x).to(torch.uint8), y) for client, (x, y) in images().items()}
    halves = [
        PatchShare(lam=0.5, patches=6, seed=3, start=start, stop=start + 3) for start in (0, 3)
    ]
    share = share_of((0, halves[0]), (1, halves[1]))
    mixed, soft = mix_inputs(share, batches.__getitem__)
    floats, _ = mix_inputs(share, lambda client: (batches[client][0].float(), batches[client][1]))
    assert mixed.dtype == torch.uint8
    assert torch.equal(mixed.float(), floats)
    assert soft.dtype == torch.float32
    assert soft.sum(1).tolist() == [1.0] * B
    weighted = share_of((0, WeightedShare(lam=0.75)), (1, WeightedShare(lam=0.25)))
    with pytest.raises(ClientError, match=r"inputs are uint8, but .* with \.float\(\)"):
        mix_inputs(weighted, batches.__getitem__)


def test_inputs_that_are_cells_already_stay_cells() -> None:
    cells = torch.randn(B, 6, 5)
    batch = (cells, torch.zeros(B, dtype=torch.int64))
    mixed, _ = mix_inputs(share_of((0, FullShare())), lambda client: batch)
    assert torch.equal(mixed, cells)


def test_vectors_are_mixed_as_equal_parts() -> None:
    """Such as rows of tables of numbers."""
    batches = {client: (torch.randn(B, 12), torch.zeros(B).long()) for client in (0, 1)}
    share = share_of((0, WeightedShare(lam=0.75)), (1, WeightedShare(lam=0.25)))
    mixed, _ = mix_inputs(share, batches.__getitem__)
    torch.testing.assert_close(mixed, 0.75 * batches[0][0] + 0.25 * batches[1][0])
    half = PatchShare(lam=0.5, patches=6, seed=3, start=0, stop=3)
    mixed, _ = mix_inputs(share_of((0, half)), batches.__getitem__)
    positions = half.positions(B)
    for row in range(B):
        parts, originals = mixed[row].view(6, 2), batches[0][0][row].view(6, 2)
        assert torch.equal(parts[positions[row]], originals[positions[row]])
        assert parts.count_nonzero() == 6


@pytest.mark.parametrize(
    "shape", [(B, C, 9, 12), (B, C, 8, 8), (B, C, 1, 3), (B, 8), (B, C, 8, 12, 1)]
)
def test_inputs_that_the_grid_does_not_divide_are_refused(shape: tuple[int, ...]) -> None:
    batch = (torch.zeros(shape), torch.zeros(B, dtype=torch.int64))
    with pytest.raises(ClientError, match=r"into 2 x 3 equal cells: .* grid=\(rows, columns\)"):
        mix_inputs(share_of((0, FullShare())), lambda client: batch)


def test_series_are_divided_along_their_length_in_every_channel() -> None:
    batches = {
        client: (torch.randn(B, 2, 12), torch.zeros(B, dtype=torch.int64)) for client in range(2)
    }
    shares = [
        BoxShare(lam=0.5, patches=6, columns=6, top=0, bottom=1, left=1, right=4, inside=inside)
        for inside in (True, False)
    ]
    mixed, _ = mix_inputs(
        share_of((0, shares[0]), (1, shares[1]), rows=1, columns=6), batches.__getitem__
    )
    expected = batches[1][0].clone()
    expected[:, :, 2:8] = batches[0][0][:, :, 2:8]
    assert torch.equal(mixed, expected)


@pytest.mark.parametrize(("rows", "columns"), [(1, 6), (2, 3)])
def test_series_of_as_many_channels_as_cells_are_cells_and_a_warning_says_so(
    rows: int, columns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Cells (b, cells, width) look the same, and whole channels would be exchanged."""
    half = PatchShare(lam=0.5, patches=6, seed=3, start=0, stop=3)
    for width, warnings in ((7, 1), (18, 2), (18, 2)):
        batch = [(torch.randn(B, 6, width), torch.zeros(B, dtype=torch.int64))]
        mixed, _ = mix_inputs(share_of((0, half), rows=rows, columns=columns), batch.__getitem__)
        assert (mixed == batch[0][0]).all(2).sum().item() == 3 * B
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == warnings
    grid = f"grid=({rows}, {columns})"
    assert f"shape (6, 18) are mixed as 6 cells of 18 numbers, since {grid}" in messages[1]


@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (1, 5)])
def test_series_that_the_cells_do_not_divide_are_refused(rows: int, columns: int) -> None:
    batch = (torch.zeros(B, 2, 12), torch.zeros(B, dtype=torch.int64))
    with pytest.raises(ClientError, match=r"series .* take the strategy's grid=\(1, columns\)"):
        mix_inputs(share_of((0, FullShare()), rows=rows, columns=columns), lambda client: batch)


def test_a_grid_finer_than_the_pixels_is_refused() -> None:
    share = share_of((0, FullShare()), rows=10**9, columns=10**9)
    with pytest.raises(ClientError, match="cannot be divided into 1000000000 x 1000000000"):
        mix_inputs(share, images().__getitem__)


def clients_of(peers: bool = True) -> list[SplitClient]:
    clients = list(TOY.make_clients())
    for index, client in enumerate(clients):
        client.attach(Order(client=index, seed=SEED, server_round=1, num_rounds=2), None)
        client.peers = clients if peers else None
    return clients


def step(client: SplitClient, number: int, share: Share) -> dict[str, Any]:
    arguments = {"number": number, "progress": 0.0, "gradient": None, "plan": [share.to_wire()]}
    return client.run("step", arguments)


def encoded(inputs: Tensor) -> Tensor:
    with torch.no_grad():
        smashed: Tensor = TOY.lower().train()(inputs)
    return smashed


def toy_share(*parts: tuple[int, Share]) -> InputShare:
    return InputShare(rows=2, columns=3, classes=TOY.classes, parts=parts, seed=4)


PAIR = ((0, WeightedShare(lam=0.75)), (1, WeightedShare(lam=0.25)))


def test_a_client_uploads_what_its_segment_makes_of_the_mixture_with_soft_labels() -> None:
    reply = step(clients_of()[0], 0, toy_share(*PAIR))
    drawn = [Batches(TOY.data(i), TOY.batch).next_batch(SEED, i) for i in (0, 1)]
    mixture = 0.75 * drawn[0][0] + 0.25 * drawn[1][0]
    torch.testing.assert_close(reply["smashed"][0], encoded(mixture), rtol=0, atol=1e-14)
    (soft,) = reply["labels"]
    hot = [F.one_hot(labels, TOY.classes).double() for _, labels in drawn]
    torch.testing.assert_close(soft, 0.75 * hot[0] + 0.25 * hot[1], rtol=0, atol=1e-15)
    assert soft.dtype == torch.float64


def test_whoever_asks_first_a_batch_is_drawn_once_a_step() -> None:
    clients = clients_of()
    for number in range(3):
        for client in ((0, 1), (1, 0))[number % 2]:
            others = PAIR if client == 0 else PAIR[::-1]
            step(clients[client], number, toy_share(*others))
        assert [client.batches.drawn for client in clients] == [number + 1, number + 1, 0]
        expected = Batches(TOY.data(1), TOY.batch)
        for _ in range(number + 1):
            inputs, _ = expected.next_batch(SEED, 1)
        assert torch.equal(clients[1].batch(number)[0], inputs)


def test_a_batch_of_ones_own_is_what_is_sent_and_what_others_mix() -> None:
    """A subclass may override `batch`, for its own steps and for its peers'."""

    class Scaled(SplitClient):
        def batch(self, number: int) -> tuple[Tensor, Tensor]:
            inputs, labels = super().batch(number)
            return 2 * inputs, labels

    clients = [Scaled(TOY.lower(), TOY.data(i), batch_size=TOY.batch, device="cpu") for i in (0, 1)]
    for index, client in enumerate(clients):
        client.attach(Order(client=index, seed=SEED, server_round=1, num_rounds=2), None)
        client.peers = clients
    drawn = [Batches(TOY.data(i), TOY.batch).next_batch(SEED, i) for i in (0, 1)]
    mixed, plain = step(clients[0], 0, toy_share(*PAIR)), step(clients[1], 0, FullShare())
    mixture = 2 * (0.75 * drawn[0][0] + 0.25 * drawn[1][0])
    torch.testing.assert_close(mixed["smashed"][0], encoded(mixture), rtol=0, atol=1e-14)
    torch.testing.assert_close(plain["smashed"][0], encoded(2 * drawn[1][0]), rtol=0, atol=1e-14)


def test_a_new_round_draws_a_new_batch() -> None:
    (first, second) = (clients_of()[0] for _ in range(2))
    share = toy_share((0, FullShare()))
    step(first, 0, share)
    first.release()
    first.attach(Order(client=0, seed=SEED, server_round=2, num_rounds=2), None)
    step(first, 0, share)
    assert first.batches.drawn == 2
    step(second, 0, share)
    assert not torch.equal(first.batch(0)[0], second.batch(0)[0])


@pytest.mark.parametrize(
    ("share", "why"),
    [
        (toy_share(*[(0, FullShare())] * 65), "mixes 65 inputs into one; at most 64 are allowed"),
        (replace(toy_share(*PAIR), classes=10**6), "asks for labels of 1000000 numbers"),
    ],
    ids=["parts", "classes"],
)
def test_a_mixture_beyond_the_limits_is_refused_before_it_is_made(
    share: InputShare, why: str
) -> None:
    client = clients_of()[0]
    with pytest.raises(ClientError, match=why):
        step(client, 0, share)
    assert client.batches.drawn == 0


def test_without_the_others_at_hand_mixing_across_clients_is_refused() -> None:
    alone = clients_of(peers=False)[0]
    with pytest.raises(
        ClientError, match=r"needs them all in one process \(fit\); within a client"
    ):
        step(alone, 0, toy_share(*PAIR))
    within = toy_share((0, WeightedShare(lam=0.75)), (0, WeightedShare(lam=0.25)))
    assert tuple(step(alone, 1, within)["smashed"][0].shape) == (TOY.batch, 6, 3)
