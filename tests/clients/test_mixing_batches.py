"""A data set whose own `batch` mixes its examples leaves no epsilon, as BatchNorm does."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import ClientError, PrivacyBudget, SplitClient, UShapeClient
from flwr_splitmix.clients.guards.mixing_batches import MIXING, mixing_batch
from flwr_splitmix.hiding import DPSGD, DPForward, Hiding
from flwr_splitmix.testing.toy_texts import TextToy
from tests.clients.guarded import ORDER, TOY, ask, mask, words


class Own:
    """Twelve examples of six numbers, and what a data set's own `batch` makes of them."""

    def __init__(self, make: Callable[[Tensor, np.ndarray], Tensor], number: int = 12) -> None:
        source = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(number, 6, generator=source)
        self.make = make

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        rows = self.inputs[torch.as_tensor(indices)]
        return self.make(rows, indices), torch.zeros(len(rows), dtype=torch.int64)


def plain(rows: Tensor, indices: np.ndarray) -> Tensor:
    return rows


def standardised(rows: Tensor, indices: np.ndarray) -> Tensor:
    return (rows - rows.mean(0)) / rows.std(0)


def noised_and_standardised(rows: Tensor, indices: np.ndarray) -> Tensor:
    return standardised(rows + torch.randn_like(rows), indices)


def mixed_up(rows: Tensor, indices: np.ndarray) -> Tensor:
    return 0.7 * rows + 0.3 * rows[torch.randperm(len(rows))]


def scaled_to_the_largest(rows: Tensor, indices: np.ndarray) -> Tensor:
    return rows / rows.abs().amax()


def noised_as_a_batch(rows: Tensor, indices: np.ndarray) -> Tensor:
    return rows + torch.randn_like(rows)


def flipped_one_by_one(rows: Tensor, indices: np.ndarray) -> Tensor:
    return torch.stack([row.flip(0) if random.random() < 0.5 else row for row in rows])


def drawn_as_often_as_an_example_says(rows: Tensor, indices: np.ndarray) -> Tensor:
    """Draws more numbers for some examples, so that later ones get others."""
    noised_rows = [
        row + np.random.rand(3 if index % 2 else 1)[0]
        for row, index in zip(rows, indices, strict=True)
    ]
    return torch.stack(noised_rows)


def padded(rows: Tensor, indices: np.ndarray) -> Tensor:
    """Cuts a batch to its longest, padding at the left."""
    lengths = torch.as_tensor(indices) % 5 + 2
    unpadded = torch.arange(6) >= 6 - lengths[:, None]
    return (rows * unpadded)[:, 6 - int(lengths.max()) :]


def cropped_then_flipped(rows: Tensor, indices: np.ndarray) -> Tensor:
    """Two passes: an example that draws more in the first has all others draw otherwise later."""
    shifted = [
        row.roll(int(np.random.randint(6)) if index % 3 else 0)
        for row, index in zip(rows, indices, strict=True)
    ]
    flips = np.random.rand(len(rows)) < 0.5
    return torch.stack([row.flip(0) if f else row for row, f in zip(shifted, flips, strict=True)])


def read_in_order(rows: Tensor, indices: np.ndarray) -> Tensor:
    """Read as HDF5 does, which takes each index once, in their order."""
    assert len(set(indices)) == len(indices)
    return rows[torch.as_tensor(np.argsort(indices))]


class Counting:
    """Makes other examples from call to call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, rows: Tensor, indices: np.ndarray) -> Tensor:
        self.calls += 1
        return rows + self.calls


@pytest.mark.parametrize(
    "make", [standardised, noised_and_standardised, mixed_up, scaled_to_the_largest]
)
def test_what_mixes_examples_is_found(make: Any) -> None:
    assert mixing_batch(Own(make), 4) == (MIXING, "")


@pytest.mark.parametrize(
    "make", [plain, noised_as_a_batch, flipped_one_by_one, padded, read_in_order]
)
def test_what_only_pads_or_augments_is_not_taken_for_it(
    make: Any,
) -> None:
    state = torch.get_rng_state(), random.getstate()
    assert mixing_batch(Own(make), 4) == ("", "")
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (drawn_as_often_as_an_example_says, "how many random numbers it draws depends on"),
        (cropped_then_flipped, "how many random numbers it draws depends on the examples"),
        (Counting(), "it draws random numbers that are not seeded, or counts its calls"),
    ],
)
def test_where_random_draws_hide_it_the_reason_is_told(make: Any, why: str) -> None:
    mixing, reason = mixing_batch(Own(make), 4)
    assert not mixing
    assert reason.startswith(why)


def test_a_client_warns_of_it_only_if_it_keeps_an_epsilon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Runs without any noise have no reason to warn."""

    class Counted(Images):
        calls = 0

        def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
            self.calls += 1
            inputs, labels = self.images.batch(indices)
            return inputs + self.calls, labels

    warning = "batch of the data set Counted mixes the examples of a batch is incomplete"
    data: Any = Counted()
    with caplog.at_level(logging.WARNING, logger="flwr.splitmix"):
        client = SplitClient(TOY.lower(), data, batch_size=4, device="cpu")
        client.attach(ORDER, None)
        assert warning not in caplog.text
        ask(client, 0, mask(3))
        assert caplog.text.count(warning) == 1
        budget = PrivacyBudget(max_epsilon=1e6)
        SplitClient(TOY.lower(), data, batch_size=4, device="cpu", privacy=budget).attach(
            ORDER, None
        )
        assert caplog.text.count(warning) == 2


def test_who_knows_better_can_say_so() -> None:
    data: Any = Own(standardised)
    data.across_batch = False
    assert mixing_batch(data, 4) == ("", "")


@pytest.mark.parametrize(("size", "number"), [(1, 12), (4, 1)])
def test_one_example_has_no_others_to_change(size: int, number: int) -> None:
    assert mixing_batch(Own(standardised, number), size) == ("", "")


class Images(Own):
    """The toy's images, standardised by the batch's own mean."""

    def __init__(self) -> None:
        super().__init__(standardised)
        self.images = TOY.data(0)

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        inputs, labels = self.images.batch(indices)
        return inputs - inputs.mean(0), labels


def test_in_the_l_shape_it_leaves_no_epsilon_and_no_budget_admits_it() -> None:
    """Uploads of all records may move together, by 2.12 clip norms; epsilon is that of one."""
    for budget in (PrivacyBudget(), PrivacyBudget(max_epsilon=1e6)):
        client = SplitClient(TOY.lower(), Images(), batch_size=4, device="cpu", privacy=budget)
        assert client.attach(ORDER, None)["across-batch"] is True
        if budget.max_epsilon is None:
            ask(client, 0, mask(3))
            assert client.epsilon == math.inf
            assert "a data set whose `batch` mixes examples" in words(client)
        else:
            with pytest.raises(ClientError, match=r"no epsilon: .* \(here: its data set's method"):
                ask(client, 0, mask(3))


class Ids(Own):
    """Texts of one length, of which the smallest token of a batch is taken away."""

    def __init__(self) -> None:
        super().__init__(plain)
        self.ids = torch.randint(2, 20, (12, 4), generator=torch.Generator().manual_seed(1))

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        ids = self.ids[torch.as_tensor(indices)]
        return ids, (ids - ids.min(0).values) % 3


@pytest.mark.parametrize("hiding", [DPForward, DPSGD])
def test_in_the_u_shape_a_hiding_with_an_epsilon_refuses_it_in_every_round(
    hiding: type[Hiding],
) -> None:
    toy = TextToy(clients=1)

    def client_with(hiding: type[Hiding]) -> UShapeClient:
        data: Any = Ids()
        return UShapeClient(
            toy.head(), toy.tail(), data, batch_size=4, device="cpu", hiding=hiding()
        )

    refused = client_with(hiding)
    for _ in range(2):  # not accepted from the second round on either
        with pytest.raises(ClientError, match=r"mixes examples: one changes .* so there is no eps"):
            refused.attach(ORDER, None)
    assert client_with(Hiding).attach(ORDER, None)["batch-size"] == 4
