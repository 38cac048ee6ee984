"""A node sends its test texts once under one head and tail, whatever the server calls the round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, Order, UShapeClient
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import DPForward
from flwr_splitmix.privacy.journal import Journal, read_journal
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.scoring.texts import TextScores
from flwr_splitmix.strategies import USplitFL
from flwr_splitmix.testing.laws import TextToy

TOY = TextToy(clients=1, tests=8)
FIRST = TOY.clients_for()[0].weights()


@contextmanager
def process(
    folder: Path, server_round: int = 1, weights: Any = None, run: str = "run"
) -> Iterator[UShapeClient]:
    """Yield the client of a node for one round, with the run's first weights or others."""
    (client,) = TOY.clients_for()
    client.govern(NodePolicy(), folder, 0, run)
    client.attach(Order(0, 7, server_round, 9), weights)
    yield client


def ask(client: UShapeClient, start: int = 0, stop: int = 4) -> dict[str, Any]:
    reply = client.run("encode_test", {"kind": "federated", "start": start, "stop": stop})
    client.run("decode_test", {"outputs": reply["messages"]})
    return reply


def test_texts_are_sent_once_however_often_a_client_attaches(tmp_path: Path) -> None:
    """A text that is mixed twice under one head is readable."""
    with process(tmp_path) as client:
        ask(client)
        client.attach(Order(0, 7, 1, 9), None)
        with pytest.raises(ClientError, match="test examples 0 to 4; next is 4 of 8"):
            ask(client)
    with (
        process(tmp_path) as another,
        pytest.raises(ClientError, match="test examples 0 to 4; next is 4 of 8"),
    ):
        ask(another)


@pytest.mark.parametrize("bounds", [(0, 0.5), (0.0, 1), (False, True), ("0", "1"), (None, 1)])
def test_an_example_has_one_number(bounds: tuple[Any, Any], tmp_path: Path) -> None:
    """Fractions of a number could send one example again and again, each time with new noise."""
    with process(tmp_path) as client:
        with pytest.raises(ClientError, match="by numbers that are not whole"):
            ask(client, *bounds)
        assert ask(client)["messages"], "nothing was noted"


def test_a_server_that_only_counts_on_gets_no_text_again(tmp_path: Path) -> None:
    """The round is the server's word, so the record does not go by it."""
    others = {name: tensor + 1 for name, tensor in FIRST.items()}
    # Round 2 under other weights and another run come between.
    for number, weights, run, refused in (
        (1, FIRST, "run", False), (1, FIRST, "run", True), (2, others, "run", False),
        (2, FIRST, "run", True), (3, others, "run", True), (1, FIRST, "another", False),
        (4, FIRST, "run", True), (2, FIRST, "run", True),
    ):  # fmt: skip
        with process(tmp_path, number, weights, run) as client:
            if refused:
                with pytest.raises(ClientError, match="test examples 0 to 4; next is 4 of 8"):
                    ask(client)
            else:
                assert ask(client)["messages"]


def test_texts_are_sent_again_once_head_and_tail_have_learned(tmp_path: Path) -> None:
    with process(tmp_path) as client:
        ask(client)
        state = client.state()
    with process(tmp_path, 2) as client:
        client.restore(*state)
        gradient = None
        for number in range(2):
            with pytest.raises(ClientError, match="test examples 0 to 4; next is 4 of 8"):
                ask(client)
            reply = client.run("encode", {"number": number, "progress": 0.0, "gradient": gradient})
            gradient = client.run("decode", {"number": number, "outputs": reply["messages"]})[
                "gradients"
            ]
        assert ask(client)["messages"]


def test_the_record_grows_by_a_line_a_pass(tmp_path: Path) -> None:
    for number in range(1, 4):
        weights = {name: tensor + number for name, tensor in FIRST.items()}
        with process(tmp_path, number, weights) as client:
            for start in (0, 4):
                ask(client, start, start + 4)
    with process(tmp_path, 4):
        entries = read_journal(tmp_path / "test-texts-0.jsonl")
    assert [entry["stop"] for entry in entries] == [8, 8, 8]


def test_a_record_of_tests_in_another_form_is_refused(tmp_path: Path) -> None:
    """If it were ignored, the examples in it could be sent again."""
    with closing(Journal(tmp_path / "test-texts-0.jsonl")) as journal:
        journal.append({"run": "run", "place": [1, 0], "kind": "federated", "stop": 4})
    message = (
        "test-texts-0.jsonl has a line without 'weights', .*: move the file away when its runs"
    )
    with pytest.raises(ClientError, match=message), process(tmp_path) as client:
        ask(client)


def test_a_client_that_has_not_trained_since_says_so(tmp_path: Path) -> None:
    with process(tmp_path) as client:
        ask(client)
        ask(client, 4, 8)
    message = (
        r"all 8 federated test examples were sent under this head and tail, .* see fraction-train"
    )
    with process(tmp_path, server_round=2) as again, pytest.raises(ClientError, match=message):
        ask(again)


@pytest.mark.parametrize("same", [True, False], ids=["the same strategy", "another strategy"])
def test_a_fit_evaluates_the_clients_that_an_earlier_one_trained(
    same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that it does not train are at the earlier fit's place, and not refused for it."""
    toy = TextToy(clients=4, tests=5)
    clients = toy.clients_for()

    def strategy() -> USplitFL:
        return USplitFL(
            toy.server(), evaluation="federated", fraction_train=0.5, device="cpu", min_nodes=1
        )

    first = strategy()
    for fit in range(4):
        (first if same else strategy()).fit(clients, 1)
        assert "evaluation continued without" not in caplog.text, fit


def test_a_round_evaluates_a_client_once_though_another_run_has_its_number() -> None:
    (client,) = TOY.clients_for()
    for draw_seed in (None, 5):
        for attempt in range(2):
            client.attach(Order(0, 7, 1, 9, draw_seed=draw_seed), None)
            if attempt:
                with pytest.raises(ClientError, match="test examples 0 to 4; next is 4 of 8"):
                    ask(client)
            else:
                assert ask(client)["messages"]
    client.begin_run()
    client.attach(Order(0, 7, 1, 9, draw_seed=5), None)
    assert ask(client)["messages"]


def test_another_run_sends_no_text_again_that_a_node_has_on_record(tmp_path: Path) -> None:
    """Which run it is, and how draws are seeded, the server says in one process, too."""
    with process(tmp_path) as client:
        ask(client)
        client.begin_run()
        client.attach(Order(0, 7, 1, 9, draw_seed=5), None)
        with pytest.raises(ClientError, match="test examples 0 to 4; next is 4 of 8"):
            ask(client)


class Twice(TextScores):
    """Scores that have every batch sent twice, as generated tokens have it sent again."""

    def __init__(self) -> None:
        super().__init__()
        self._again: MaskedBatch | None = None

    def add(self, logits: Tensor, batch: MaskedBatch) -> MaskedBatch | None:
        self._again = None if self._again is batch else batch
        return self._again


def test_each_batch_that_is_sent_has_secrets_of_its_own() -> None:
    """With the secrets of the first batch for all, one draw would decide a whole evaluation."""
    head, tail = nn.Linear(4, 4), nn.Linear(4, 3)
    inputs, labels = torch.ones(8, 5, 4), torch.zeros(8, dtype=torch.int64)
    tests: Any = TensorDataset(inputs, labels)

    def sent() -> list[Tensor]:
        client = UShapeClient(
            Masked(head), Masked(tail, pooled=True), tests, test_data=tests, batch_size=4,
            hiding=DPForward(), scores=Twice, repeatable_secrets=True, device="cpu",
        )  # fmt: skip
        client.attach(Order(0, 7, 1, 1), None)
        messages = []
        for start in (0, 4):
            reply = client.run(
                "encode_test", {"kind": "federated", "start": start, "stop": start + 4}
            )
            while reply:
                (message,) = reply["messages"]
                messages.append(message)
                reply = client.run("decode_test", {"outputs": [message]})
        return messages

    first, again = sent(), sent()
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    pairs = list(combinations(first, 2))
    assert len(pairs) == 6
    assert not any(torch.equal(*pair) for pair in pairs)


class Masked(nn.Module):
    def __init__(self, layer: nn.Module, *, pooled: bool = False) -> None:
        super().__init__()
        self.layer, self.pooled = layer, pooled

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        output: Tensor = self.layer(inputs)
        return output.mean(1) if self.pooled else output
