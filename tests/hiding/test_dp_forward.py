"""DP-Forward: what leaves is clipped and noised as it is said, and each release is priced."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import ClientError, Order, UShapeClient
from flwr_splitmix.data.batches import Batches, batch_indices
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import DPSGD, DPForward
from flwr_splitmix.hiding.record_ledger import RecordLedger
from flwr_splitmix.privacy.events import OUTSIDE_IN_U_SHAPE, UNBOUNDED
from flwr_splitmix.strategies.ushape_defences import DPForwardSL
from flwr_splitmix.testing.toy_texts import TextToy, ToyHead, text_toy
from flwr_splitmix.words import epsilon_text
from tests.privacy.gaussian import exact_delta, exact_epsilon

ORDER = Order(0, 7, 1, 1)
TOY = TextToy(clients=1, tests=6, dropout=0.0)


def message_and_states(hiding: DPForward, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
    """Return the message of a batch, and the head's hidden states."""
    (client,) = replace(TOY, hiding=lambda: hiding).clients_for(repeatable_secrets=False)
    client.attach(ORDER, None)
    (message,) = client.hiding.obfuscate(batch).messages
    return message, client.head(batch.inputs, batch.mask)


BATCH = MaskedBatch(
    torch.tensor([[2, 3, 4, 5], [6, 7, 0, 0]]),
    torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    torch.zeros(2, dtype=torch.int64),
)


def test_sigma_is_the_least_that_epsilon_and_delta_need() -> None:
    hiding = DPForward()
    assert hiding.sigma == pytest.approx(1.20046, rel=1e-5)  # an independent solve: test_analytic
    assert exact_delta(8.0, 2.0 / hiding.sigma) == pytest.approx(1e-5, rel=1e-6)
    assert DPForward(clip_norm=3.0).sigma == pytest.approx(3 * hiding.sigma)


def test_the_published_sensitivity_is_priced_by_what_it_is() -> None:
    published = DPForward(sensitivity="published")
    assert published.sigma == pytest.approx(DPForward().sigma / 2)
    assert exact_epsilon(1e-5, DPForward().covering.shift) == pytest.approx(8.0, rel=1e-9)
    assert published.covering.shift == 2 / published.sigma
    assert exact_epsilon(1e-5, published.covering.shift) > 19  # not 8


def test_epsilon_can_be_asked_of_many_releases_together() -> None:
    """An independent solve: so many releases shift by the root of their number."""
    hiding = DPForward(epsilon=4.0, releases=6)
    assert exact_delta(4.0, math.sqrt(6) * 2 / hiding.sigma) == pytest.approx(1e-5, rel=1e-6)
    each = exact_epsilon(1e-5, hiding.covering.shift)
    assert each < 4.0 / math.sqrt(6)  # less than the whole is


def test_a_run_whose_tails_alone_learn_costs_what_was_asked_for() -> None:
    """Three epochs: what leaves of a training text is three messages, and its length.

    The mean loss must stay: a server that has the first tail reads all labels from it.
    """
    toy = TextToy(clients=1, hiding=lambda: DPForward(epsilon=2.0, releases=3))
    strategy = DPForwardSL(toy.server(), device="cpu", evaluation="none")
    (client,) = toy.clients_for(strategy, learns="tail")
    result = strategy.fit([client], 3)
    assert client.epsilon == pytest.approx(2.0, rel=1e-9)
    hiding: Any = client.hiding
    statement = str(hiding.statement())
    assert statement.endswith("Not covered: the lengths of texts or series, which masks reveal")
    assert list(result.train_metrics_clientapp[3]) == ["epsilon"]
    assert strategy.rows[-1]["loss"] is None


def test_a_head_of_which_only_a_part_is_frozen_learns_from_texts() -> None:
    hiding = DPForward()
    (client,) = replace(TOY, hiding=lambda: hiding).clients_for()
    client.head.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    client.attach(ORDER, None)
    hiding.charge("train", np.arange(2))
    assert "what a record did to the head" in str(hiding.statement())


def test_scores_of_private_texts_are_not_covered_whoever_spends_most() -> None:
    """A server that averages tails can find labels that give the mean loss of few texts."""
    toy = TextToy(clients=1, hiding=DPForward, tests=6)
    strategy = DPForwardSL(toy.server(), device="cpu", evaluation="federated", steps_per_round=8)
    (client,) = toy.clients_for(strategy, learns="tail")
    strategy.fit([client], 1)
    hiding: Any = client.hiding
    trained, tested = (hiding.ledger._ledgers[kind].spent()[2] for kind in ("train", "federated"))
    assert trained > tested  # so the number is that of a training text
    assert OUTSIDE_IN_U_SHAPE["losses"] in str(hiding.statement())


@pytest.mark.parametrize("learns", ["all", "tail"])
@pytest.mark.parametrize("kind", ["federated", "benchmark"])
def test_scores_on_public_texts_are_not_covered_either(learns: str, kind: Any) -> None:
    """A server that chose the outputs read 12 of 12 training labels from them, and nothing said."""
    toy = TextToy(clients=1, hiding=DPForward, tests=6)
    strategy = DPForwardSL(toy.server(), device="cpu", evaluation=kind, steps_per_round=2)
    (client,) = toy.clients_for(strategy, learns=learns, benchmark_data=toy.texts(99, 6))
    strategy.fit([client], 1)
    hiding: Any = client.hiding
    assert OUTSIDE_IN_U_SHAPE["losses"] in hiding.statement().outside
    again = DPForward()
    (other,) = replace(toy, hiding=lambda: again).clients_for()
    other.attach(ORDER, None)
    again.restore(*hiding.state())
    assert again.statement().outside == hiding.statement().outside


def test_where_the_tail_alone_learns_and_is_not_scored_nothing_tells_of_labels() -> None:
    toy = TextToy(clients=1, hiding=DPForward, tests=6)
    strategy = DPForwardSL(toy.server(), device="cpu", evaluation="none", steps_per_round=2)
    (client,) = toy.clients_for(strategy, learns="tail")
    strategy.fit([client], 1)
    hiding: Any = client.hiding
    assert hiding.statement().outside == (OUTSIDE_IN_U_SHAPE["lengths"],)


def test_a_text_is_clipped_as_a_whole_and_what_it_holds_behind_its_end_is_nothing() -> None:
    hiding = DPForward(epsilon=1e9, clip_norm=0.5)
    message, hidden = message_and_states(hiding, BATCH)
    real = hidden * BATCH.mask.unsqueeze(-1)
    lengths = torch.linalg.vector_norm(real, dim=(1, 2), keepdim=True)
    assert (lengths > 0.5).all()
    torch.testing.assert_close(message, 0.5 * real / lengths, atol=1e-3, rtol=0)
    whole, hidden = message_and_states(DPForward(epsilon=1e9, clip_norm=1e3), BATCH)
    torch.testing.assert_close(
        whole, hidden * BATCH.mask.unsqueeze(-1), atol=1.0, rtol=0
    )  # none is that long


def test_the_noise_has_its_sigma_at_every_place_and_is_new_each_time() -> None:
    wide = replace(BATCH, inputs=BATCH.inputs.repeat(200, 1), mask=BATCH.mask.repeat(200, 1))
    hiding = DPForward(clip_norm=2.0)
    message, hidden = message_and_states(hiding, wide)
    real = hidden * wide.mask.unsqueeze(-1)
    lengths = torch.linalg.vector_norm(real, dim=(1, 2), keepdim=True)
    noise = message - real / (lengths / 2.0).clamp(min=1)
    each = noise.reshape(200, 2, 4, -1).std(dim=(0, 3))
    assert each.numel() == 8
    torch.testing.assert_close(each, torch.full_like(each, hiding.sigma), rtol=0.12, atol=0)
    assert noise.unique().numel() == noise.numel()


def test_another_text_moves_a_release_by_the_sensitivity_at_most() -> None:
    """Two texts that point apart are 2 C from each other: C is no sensitivity."""
    (client,) = replace(TOY, hiding=lambda: DPForward(epsilon=1e12)).clients_for()
    client.attach(ORDER, None)
    words = client.head.get_parameter("words.weight")
    with torch.no_grad():
        words.mul_(100)
        words[3] = -words[2]
    one, other = (
        client.hiding.obfuscate(
            MaskedBatch(torch.full((1, 4), word), torch.ones(1, 4).long(), torch.zeros(1).long())
        ).messages[0]
        for word in (2, 3)
    )
    assert float((one - other).detach().norm()) == pytest.approx(2.0, rel=1e-3)


def test_what_is_no_number_is_clipped_too() -> None:
    (client,) = replace(TOY, hiding=DPForward).clients_for()
    client.attach(ORDER, None)
    with torch.no_grad():
        client.head.get_parameter("words.weight")[2] = math.nan
    assert client.hiding.obfuscate(BATCH).messages[0].isfinite().all()


def test_every_release_is_priced_text_by_text() -> None:
    """12 texts in batches of 4, two rounds of 4 steps: a text is in 2 or 3 of 8 batches."""
    toy = text_toy("DPForwardSL", clients=1, tests=6)
    strategy = DPForwardSL(
        toy.server(), device="cpu", steps_per_round=4, evaluation="federated", seed=1
    )
    (client,) = toy.clients_for(strategy)
    strategy.fit([client], 2)
    hiding = client.hiding
    assert isinstance(hiding, DPForward)
    expected = exact_epsilon(1e-5, math.sqrt(3) * hiding.covering.shift)
    assert client.epsilon == pytest.approx(expected, rel=1e-9)
    assert hiding.metrics() == {"epsilon": client.epsilon}
    assert strategy.rows[-1]["train_epsilon"] == pytest.approx(expected)
    statement = str(hiding.statement())
    shown = epsilon_text(strategy.rows[-1]["train_epsilon"])
    assert statement.startswith(f"epsilon {shown} at delta 1e-05 when a record is replaced.")
    for word in (
        "gradients returned to the trunk",
        "lengths of texts",
        "did to the head",
        "losses",
    ):
        assert word in statement
    # Two evaluations of 6 test texts.
    tests = hiding.ledger._ledgers["federated"]
    assert tests.spent()[2] == pytest.approx(2 * hiding.covering.shift**2 / 2)


@pytest.mark.fresh_secrets
def test_what_was_asked_for_again_is_paid_again() -> None:
    """Its noise is another one; only where secrets repeat is it the same release."""
    for repeatable, times in ((False, 3), (True, 1)):
        (client,) = replace(TOY, hiding=DPForward).clients_for(repeatable_secrets=repeatable)
        client.attach(replace(ORDER, attempt=2, earlier=(1, 1)), None)
        client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
        hiding: Any = client.hiding
        expected = exact_epsilon(1e-5, math.sqrt(times) * hiding.covering.shift)
        assert client.epsilon == pytest.approx(expected, rel=1e-9)


@pytest.mark.fresh_secrets
def test_an_evaluation_that_was_asked_for_before_is_paid_each_time() -> None:
    """Test texts are sent again with other noise: epsilon 15.86, not the 8.00 of one release."""
    for repeatable, times in ((False, 3), (True, 1)):
        (client,) = replace(TOY, hiding=DPForward).clients_for(repeatable_secrets=repeatable)
        client.attach(replace(ORDER, attempt=2), None)
        client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})
        hiding: Any = client.hiding
        cost = hiding.ledger._ledgers["federated"].spent()[2]
        assert cost == pytest.approx(times * hiding.covering.shift**2 / 2)


@pytest.mark.fresh_secrets
@pytest.mark.parametrize("hiding", [DPForward, DPSGD])
@pytest.mark.parametrize(("drawn", "earlier"), [(0, (6,)), (2, (2, 3)), (0, ())])
def test_what_was_asked_for_is_paid_for_also_if_it_is_more_than_is_asked_for_again(
    hiding: Any, drawn: int, earlier: tuple[int, ...]
) -> None:
    """Passes have three batches of four texts, and this round has one batch, or two."""
    (client,) = replace(TOY, hiding=hiding).clients_for(repeatable_secrets=False)
    client.batches.drawn = drawn
    client.attach(replace(ORDER, attempt=len(earlier), earlier=earlier), None)
    client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    client_hiding: Any = client.hiding
    assert client.batches.per_epoch == 3
    # What DP-SGD's steps cost is charged with the step itself, which is not taken here.
    charges_batches = hiding is DPForward
    paid = np.zeros(12)
    for length in earlier:
        for number in range(drawn, drawn + length):
            paid[batch_indices(12, 4, ORDER.seed, 0, number)] += 1
    shift = client_hiding.covering.shift if charges_batches else 2 / client_hiding.noise_multiplier
    for number in range(2):
        if number:
            client.run("encode", {"number": number, "progress": 0.0, "gradient": None})
        paid[client.batches.indices] += charges_batches
        expected = exact_epsilon(1e-5, math.sqrt(paid.max()) * shift) if paid.any() else 0
        assert client_hiding.ledger.epsilon(1e-5) == pytest.approx(expected, rel=1e-9)


@pytest.mark.fresh_secrets
@pytest.mark.parametrize("hiding", [DPForward, DPSGD])
def test_earlier_attempts_are_drawn_again_only_as_they_are_charged(hiding: Any) -> None:
    """If all orders were kept, a ticket with one large number would take gigabytes."""
    (client,) = replace(TOY, hiding=hiding).clients_for(repeatable_secrets=False)
    drawn = []

    def records(
        batches: Batches, seed: int, client: int, first: int, last: int
    ) -> Iterator[np.ndarray]:
        for number in range(first, last):
            drawn.append(number)
            yield batch_indices(batches.examples, batches.size, seed, client, number)

    with patch.object(Batches, "records", records):
        client.attach(replace(ORDER, attempt=1, earlier=(3,)), None)
        assert not drawn
        client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    assert drawn == [0, 1, 2]


@pytest.mark.fresh_secrets
@pytest.mark.parametrize("hiding", [DPForward, DPSGD])
def test_an_attempt_of_unknown_length_has_no_epsilon(hiding: Any) -> None:
    (client,) = replace(TOY, hiding=hiding).clients_for(repeatable_secrets=False)
    client.attach(replace(ORDER, attempt=2, earlier=(1,)), None)
    client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    client_hiding: Any = client.hiding
    assert client_hiding.ledger.epsilon(1e-5) == math.inf
    assert "length, mixer or noise is not known" in str(client_hiding.statement())


def test_a_state_with_a_note_of_another_version_has_no_epsilon() -> None:
    ledger = RecordLedger()
    ledger.open({"train": 2})
    state = ledger.state()
    state["train"]["notes"] = ["leftover"]
    ledger = RecordLedger()
    ledger.restore(state)
    assert ledger.epsilon(1e-5) == ledger.statement(1e-5).epsilon == math.inf


@pytest.mark.parametrize("epsilon", [1e15, 1e20, 1e308])
def test_noise_that_the_clipped_states_swallow_leaves_no_epsilon(epsilon: float) -> None:
    (client,) = replace(TOY, hiding=lambda: DPForward(epsilon=epsilon)).clients_for()
    client.attach(ORDER, None)
    client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    hiding: Any = client.hiding
    assert hiding.epsilon == math.inf
    assert hiding.statement().unbounded_because == (UNBOUNDED["resolution"],)


def test_a_plain_client_counts_nothing() -> None:
    (client,) = TOY.clients_for()
    assert client.epsilon is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epsilon": 0.0}, r"epsilon is 0\.0; it must be a number above 0"),
        ({"epsilon": math.nan}, "epsilon is nan; it must be a number above 0"),
        ({"delta": 0.0}, r"delta is 0\.0; it must lie strictly between 0 and 1"),
        ({"delta": 1.0}, r"delta is 1\.0; it must lie strictly between 0 and 1"),
        ({"epsilon": 1e-310, "delta": 1e-310}, "epsilon is 1e-310 and delta 1e-310 .* or delta$"),
        (
            {"clip_norm": 3e38, "epsilon": 0.1},
            "epsilon 0.1 and .* float32, .* larger epsilon or fewer releases",
        ),
        ({"clip_norm": 1e308}, r"clip_norm is 1e\+308, but .* give a bound from"),
        ({"clip_norm": 0.0}, r"clip_norm is 0\.0; it must be a number above 0"),
        ({"clip_norm": math.inf}, "clip_norm is inf; it must be a number above 0"),
        ({"releases": 0}, "releases is 0; it must be at least 1"),
        ({"releases": 1.5}, r"releases is 1\.5; it must be a whole number"),
        ({"epsilon": "8"}, "epsilon is '8'; it must be a number"),
        ({"clip_norm": None}, "clip_norm is None; it must be a number"),
        ({"sensitivity": "C"}, "sensitivity is 'C'; it must be one of replace, published"),
    ],
    ids=str,
)
def test_an_option_out_of_range_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DPForward(**options)


class BatchNormHead(ToyHead):
    """A head whose states of one text depend on the other texts of the batch."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__(width, dropout)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        normal: Tensor = self.norm(super().forward(ids, mask).mT).mT
        return normal


def test_a_head_with_layers_across_the_batch_is_refused() -> None:
    """Its ledger would say the epsilon of a head that keeps texts apart."""
    toy = replace(TOY, hiding=DPForward)
    head = BatchNormHead(toy.width, 0.0).double()
    client = UShapeClient(head, toy.tail(), toy.texts(0, 4), device="cpu", hiding=DPForward())
    with pytest.raises(ClientError, match=r"the head has BatchNorm, .* no epsilon: take a head"):
        client.attach(ORDER, None)
