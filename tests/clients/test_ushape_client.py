"""UShapeClient: one optimizer for head and tail, exchanges in order, scores that are means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import ClientError, TextSet, UShapeClient
from flwr_splitmix.data.texts.batch import TextBatch
from flwr_splitmix.hiding import Hiding, Sent
from flwr_splitmix.links import LinkError
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.strategies import USplitFL, USplitSL
from flwr_splitmix.strategies.ushape import UShapeStrategy
from flwr_splitmix.testing.laws import TextToy, sgd
from tests.clients.ushape import ORDER, attached, decode, encode


def test_no_step_is_taken_without_the_heads_gradient() -> None:
    client = attached()
    before = {name: tensor.clone() for name, tensor in client.weights().items()}
    decode(client, encode(client))
    encode(client, 1)
    assert client.steps == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in client.weights().items())


def test_a_step_moves_head_and_tail() -> None:
    client = attached()
    before = {name: tensor.clone() for name, tensor in client.weights().items()}
    sent = encode(client)
    returned = decode(client, sent)
    encode(client, 1, gradient=returned["gradients"], last=True)
    assert client.steps == 1
    assert not any(torch.equal(before[name], t) for name, t in client.weights().items())


def test_a_gradient_for_messages_that_were_never_decoded_is_not_used() -> None:
    client = attached()
    sent = encode(client)
    encode(client, 1, gradient=[torch.ones_like(sent["messages"][0])])
    assert client.steps == 0


def test_a_gradient_of_another_round_is_not_applied() -> None:
    client = attached()
    returned = decode(client, encode(client))
    client.attach(ORDER, None)  # the round was given up, another begins
    encode(client, gradient=returned["gradients"])
    assert client.steps == 0


def test_an_embedding_that_head_and_tail_share_is_one_parameter() -> None:
    toy = TextToy(clients=1)
    head, tail = toy.head(), toy.tail()
    tail.output.weight = head.words.weight
    client = UShapeClient(head, tail, toy.texts(0, 8), device="cpu", batch_size=4)
    client.attach(ORDER, None)
    assert sorted(client.weights()) == ["head.words.weight", "tail.output.bias"]
    client.attach(ORDER, {name: tensor + 1 for name, tensor in client.weights().items()})
    assert tail.output.weight is head.words.weight


def test_frozen_parameters_are_not_sent() -> None:
    toy = TextToy(clients=1)
    head = toy.head().requires_grad_(False)
    client = UShapeClient(head, toy.tail(), toy.texts(0, 8), device="cpu", batch_size=4)
    client.attach(ORDER, None)
    assert sorted(client.weights()) == ["tail.output.bias", "tail.output.weight"]
    returned = decode(client, sent := encode(client))
    encode(client, 1, gradient=[torch.zeros_like(sent["messages"][0])])
    assert client.steps == 1
    assert returned["gradients"][0].abs().sum() > 0


def test_bfloat16_travels_as_float32_and_comes_back() -> None:
    toy = TextToy(clients=1)
    client = UShapeClient(
        toy.head().bfloat16(), toy.tail().bfloat16(), toy.texts(0, 8), device="cpu", batch_size=4
    )
    weights = client.weights()
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    client.attach(ORDER, {name: tensor * 2 for name, tensor in weights.items()})
    for name, tensor in client.weights().items():
        torch.testing.assert_close(tensor, weights[name] * 2)


@pytest.mark.parametrize(
    ("method", "arguments", "sentence"),
    [
        ("decode", {"number": 0, "outputs": []}, "decodes what this client has not encoded"),
        ("decode_test", {"outputs": []}, "decodes what this client has not encoded"),
        ("encode_test", {"kind": "benchmark", "start": 0, "stop": 2}, "no benchmark test data"),
        ("score", {"kind": "federated"}, "has not scored its federated test data"),
        ("weights", {}, "'weights' is not an exchange"),
        ("obfuscate", {}, "'obfuscate' is not an exchange"),
    ],
)
def test_calls_out_of_order_are_refused(
    method: str, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ClientError, match=sentence):
        attached().run(method, arguments)


def test_outputs_of_another_shape_are_refused() -> None:
    client = attached()
    sent = encode(client)
    with pytest.raises(ClientError, match=r"answers with outputs of shapes \[\(4, 1, 5\)\]"):
        decode(client, {"messages": [sent["messages"][0][:, :1]]})


def test_scores_are_those_of_the_whole_test_set() -> None:
    toy = TextToy(clients=1, tests=7, task="classification", dropout=0.0)
    client = attached(toy)
    for start, stop in ((0, 4), (4, 7)):
        sent = client.run("encode_test", {"kind": "federated", "start": start, "stop": stop})
        assert client.run("decode_test", {"outputs": sent["messages"]}) == {}
    reply = client.run("score", {"kind": "federated"})
    texts = TextBatch.of(toy.texts(10_000, 7).batch(range(7)), torch.device("cpu"))  # type: ignore[arg-type]
    logits = client.tail(client.head(texts.ids, texts.mask), texts.mask)
    assert reply["examples"] == 7
    assert reply["scores"]["accuracy"] == pytest.approx(
        float((logits.argmax(1) == texts.labels).double().mean())
    )
    loss = torch.nn.functional.cross_entropy(logits, texts.labels)
    assert reply["scores"]["loss"] == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ([(0, 4), (0, 4)], "test texts 0 to 4; next is 4 of 7"),
        ([(1, 2)], "test texts 1 to 2; next is 0 of 7"),
        ([(0, 4), (5, 7)], "test texts 5 to 7; next is 4 of 7"),
        ([(0, 8)], "test texts 0 to 8; next is 0 of 7"),
        ([(0, 0)], "test texts 0 to 0; next is 0 of 7"),
        ([(0, 4), "score"], "not scored its federated test data, or not all of it"),
        ([(0, 5)], "asks for 5 test texts at once; this client sends at most 4, its batch size"),
        ([(0, 4), (4, 7), "score", (0, 4)], "all 7 federated test texts were sent under this"),
        ([(0, 4), (4, 7), "score", "score"], "not scored its federated test data"),
    ],
    ids=str,
)
def test_no_score_is_that_of_a_single_text(asked: Sequence[Any], sentence: str) -> None:
    """A server that may choose the texts reads each one's label off its score."""
    client = attached(TextToy(clients=1, tests=7, task="classification"))

    def ask(what: Any) -> None:
        if what == "score":
            client.run("score", {"kind": "federated"})
            return
        place = {"kind": "federated", "start": what[0], "stop": what[1]}
        sent = client.run("encode_test", place)
        client.run("decode_test", {"outputs": sent["messages"]})

    for what in asked[:-1]:
        ask(what)
    with pytest.raises(ClientError, match=sentence):
        ask(asked[-1])


@pytest.mark.parametrize("anew", [False, True], ids=["attached again", "another process"])
def test_no_score_is_that_of_the_texts_since_an_interruption(tmp_path: Path, anew: bool) -> None:
    """The texts of an earlier process counted as scored: the last one's score told its label."""
    toy = TextToy(clients=1, tests=7, task="classification")
    places = [{"kind": "federated", "start": a, "stop": b} for a, b in ((0, 4), (4, 7))]
    (client,) = toy.clients_for()
    client.govern(NodePolicy(), tmp_path, 0, "run")
    client.attach(ORDER, None)
    client.run("encode_test", places[0])
    if anew:
        (client,) = toy.clients_for()
        client.govern(NodePolicy(), tmp_path, 0, "run")
    client.attach(ORDER, None)
    sent = client.run("encode_test", places[1])
    client.run("decode_test", {"outputs": sent["messages"]})
    with pytest.raises(ClientError, match="not scored its federated test data, or not all of it"):
        client.run("score", {"kind": "federated"})


def test_a_batch_whose_answer_is_waited_for_is_not_followed_by_another() -> None:
    client = attached(TextToy(clients=1, tests=7, task="classification"))
    client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})
    with pytest.raises(ClientError, match="test texts 4 to 7"):
        client.run("encode_test", {"kind": "federated", "start": 4, "stop": 7})


def test_a_client_without_texts_is_refused() -> None:
    toy = TextToy(clients=1)
    with pytest.raises(ClientError, match="no training data"):
        UShapeClient(toy.head(), toy.tail(), TextSet([], []), device="cpu")


UNLABELLED = [-100] * 4


@pytest.mark.parametrize("labels", [[UNLABELLED] * 2, [[5, -100, -100, -100]] * 2])
def test_a_client_without_a_label_to_predict_is_refused(labels: list[list[int]]) -> None:
    toy = TextToy(clients=1)
    with pytest.raises(ClientError, match="none of 2 training texts has a label to predict"):
        UShapeClient(toy.head(), toy.tail(), TextSet([[1, 2, 3, 4]] * 2, labels), device="cpu")


def test_batches_without_a_label_do_not_count_in_the_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy = TextToy(clients=1, dropout=0.0)
    text = [1, 2, 3, 4]
    losses = []
    for labels in ([text, UNLABELLED], [text, text]):
        texts = TextSet([text] * 2, labels)
        options: dict[str, Any] = {"optimizer": sgd(0.0), "device": "cpu"}
        client = UShapeClient(toy.head(), toy.tail(), texts, batch_size=1, **options)
        strategy = USplitSL(toy.server(), **options)
        strategy.fit([client], 1)
        losses.append(strategy.rows[0]["loss"])
    assert losses[0] == pytest.approx(losses[1])
    told = [r.getMessage() for r in caplog.records if "no label" in r.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("1 of 2 training texts has no label to predict (-100 marks")


@pytest.mark.parametrize("kind", [USplitSL, USplitFL])
@pytest.mark.parametrize("labelled", [0, 1])
def test_a_round_without_a_label_has_no_loss(
    kind: type[UShapeStrategy], labelled: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It had a loss of 0, which the mean over clients took in."""
    toy = TextToy(clients=1, dropout=0.0)
    text = [1, 2, 3, 4]
    options: dict[str, Any] = {"optimizer": sgd(0.0), "device": "cpu"}
    clients = [
        UShapeClient(toy.head(), toy.tail(), TextSet(texts, labels), batch_size=1, **options)
        for texts, labels in (
            *[([text] * 100, [UNLABELLED] * 99 + [text])] * (2 - labelled),
            *[([text], [text])] * labelled,
        )
    ]
    strategy = kind(toy.server(), steps_per_round=1, **options)
    result = strategy.fit(clients, 1)
    (row,) = strategy.rows
    assert row["clients_failed"] == 0
    assert ("train-loss" in result.train_metrics_clientapp[1]) == bool(labelled)
    assert (row["loss"] is None) == (not labelled)
    told = [r.getMessage() for r in caplog.records if "round 1" in r.getMessage()]
    assert told[: 2 - labelled] == [
        f"client {index}: no text of round 1 had a label to predict, so it has no loss"
        for index in range(2 - labelled)
    ]


@pytest.mark.parametrize(
    ("learns", "accounts", "told"),
    [("all", False, True), ("all", True, True), ("tail", False, True), ("tail", True, False)],
)
def test_only_a_tail_that_learns_alone_under_an_epsilon_has_no_loss(
    learns: str, accounts: bool, told: bool
) -> None:
    hiding = Hiding()
    hiding.accounts = accounts  # type: ignore[misc]
    client = attached(TextToy(clients=1, hiding=lambda: hiding), learns=learns)
    decode(client, encode(client))
    assert ("train-loss" in client.release()[1]) is told


def test_one_batch_has_one_answer() -> None:
    """400 answers for one batch were averages of as many draws of a perturbed gradient."""
    client = attached()
    sent = encode(client)
    decode(client, sent)
    with pytest.raises(ClientError, match="the gradients of one batch twice"):
        decode(client, sent)
    assert decode(client, encode(client, 1))["gradients"]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_outputs_and_gradients_that_are_not_finite_change_nothing(bad: float) -> None:
    """NaN outputs turned head and tail to NaN."""
    client = attached()
    before = {name: tensor.clone() for name, tensor in client.weights().items()}
    sent = encode(client)
    spoilt = [message.clone() for message in sent["messages"]]
    spoilt[0].view(-1)[0] = bad
    with pytest.raises(ClientError, match="the trunk's output of message 0 has NaN or infinite"):
        client.run("decode", {"number": 0, "outputs": spoilt})
    returned = decode(client, sent)["gradients"]
    returned[0].view(-1)[0] = bad
    with pytest.raises(ClientError, match="the server's gradient of message 0 has NaN or infinite"):
        encode(client, 1, gradient=returned)
    assert all(torch.equal(before[name], tensor) for name, tensor in client.weights().items())


def test_outputs_and_gradients_beyond_all_change_nothing() -> None:
    """Outputs of 1e300 gave gradients of NaN, and a step by them a tail of NaN."""
    client = attached()
    before = {name: tensor.clone() for name, tensor in client.weights().items()}
    sent = encode(client)
    huge = [torch.full_like(message, 1e300) for message in sent["messages"]]
    with pytest.raises(ClientError, match=r"output of message 0 has numbers beyond 1e\+06"):
        client.run("decode", {"number": 0, "outputs": huge})
    decode(client, sent)
    with pytest.raises(ClientError, match=r"gradient of message 0 has numbers beyond 1e\+06"):
        encode(client, 1, gradient=huge)
    assert all(torch.equal(before[name], tensor) for name, tensor in client.weights().items())


@pytest.mark.parametrize("number", [torch.nan, 1e30])
def test_a_servers_absurd_head_and_tail_are_not_loaded(number: float) -> None:
    client = attached()
    before = {name: tensor.clone() for name, tensor in client.weights().items()}
    with pytest.raises(ClientError, match=r"the server's head and tail: head\.words\.weight has "):
        client.attach(ORDER, {n: torch.full_like(t, number) for n, t in before.items()})
    assert all(torch.equal(before[name], tensor) for name, tensor in client.weights().items())


class Overflowing(UShapeClient):
    """Has a loss of infinite derivative."""

    def loss(self, hidden: Tensor, sent: Sent) -> Tensor:
        return super().loss(hidden, sent) * torch.inf


@pytest.mark.parametrize("learns", ["all", "tail"])
def test_no_step_is_taken_with_a_gradient_that_overflows(learns: str) -> None:
    client = attached(TextToy(kind=Overflowing, clients=1), learns=learns)
    before = {name: tensor.clone() for name, tensor in client.weights().items()}
    sent = encode(client)
    decode(client, sent)
    zeros = [torch.zeros_like(message) for message in sent["messages"]]
    with pytest.raises(ClientError, match="gradient of head and tail has NaN or infinite"):
        encode(client, 1, gradient=zeros if learns == "all" else None)
    assert client.steps == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in client.weights().items())


def test_a_tail_of_which_a_part_is_frozen_can_learn_alone() -> None:
    toy = TextToy(clients=1)
    tail = toy.tail()
    tail.output.bias.requires_grad_(False)
    client = UShapeClient(toy.head(), tail, toy.texts(0, 4), learns="tail", device="cpu")
    assert sorted(client.weights()) == ["tail.output.weight"]


def test_a_node_that_allows_no_averaging_keeps_to_a_runs_first_weights(tmp_path: Path) -> None:
    """A server used to be able to replace head and tail in every round."""
    policy = NodePolicy(allow_averaging=False)
    toy = TextToy(clients=1)
    first = toy.clients_for()[0].weights()
    others = {name: tensor + 1 for name, tensor in first.items()}
    same_bytes = {name: tensor.view(torch.int64) for name, tensor in first.items()}
    for arrays, refused in [(first, False), (others, True), (same_bytes, True), (first, False)]:
        client = toy.clients_for()[0]  # each round is a process of its own
        client.govern(policy, tmp_path, 0, "run")
        if refused:
            with pytest.raises(ClientError, match="allow_averaging = false, and the server sends"):
                client.attach(ORDER, arrays)
        else:
            client.attach(ORDER, arrays)
    trusting = toy.clients_for()[0]
    trusting.govern(NodePolicy(), tmp_path, 0, "another run")
    for arrays in (first, others):
        trusting.attach(ORDER, arrays)


class Detached(UShapeClient):
    """Adds noise without gradients, so that the head learns nothing."""

    def obfuscate(self, batch: TextBatch) -> Sent:
        sent = super().obfuscate(batch)
        return replace(sent, messages=[message.detach() for message in sent.messages])


@pytest.mark.parametrize("frozen", [False, True], ids=["", "a part frozen"])
def test_messages_without_a_gradient_are_refused(frozen: bool) -> None:
    toy = TextToy(clients=1, kind=Detached)
    strategy = USplitSL(toy.server(), device="cpu")
    (client,) = toy.clients_for(strategy)
    client.head.own = nn.Parameter(torch.zeros(1), requires_grad=not frozen)
    with pytest.raises(LinkError, match="the head has weights to train, but no message has a grad"):
        strategy.fit([client], 1)


class Calibrated(Hiding):
    """Keeps a number of its own, which is a ledger's if it accounts."""

    kept = 0

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"kept": self.kept}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        self.kept = meta["kept"]


@pytest.mark.parametrize("accounts", [False, True])
def test_what_was_trained_comes_back_without_what_was_spent(accounts: bool) -> None:
    hiding = Calibrated()
    hiding.accounts = accounts  # type: ignore[misc]
    toy = TextToy(clients=1)
    client = UShapeClient(toy.head(), toy.tail(), toy.texts(0, 4), hiding=hiding, device="cpu")
    state = client.state()
    hiding.kept = 3
    client.restore_trained(*state)
    assert hiding.kept == (3 if accounts else 0)


def test_what_layers_measure_is_kept() -> None:
    def made() -> tuple[UShapeClient, nn.BatchNorm1d]:
        toy = TextToy(clients=1)
        norm = nn.BatchNorm1d(toy.width)
        head = nn.ModuleList([toy.head(), norm])
        return UShapeClient(head, toy.tail(), toy.texts(0, 4), device="cpu"), norm

    (one, norm), (other, other_norm) = made(), made()
    assert norm.running_mean is not None
    assert other_norm.running_mean is not None
    norm.running_mean += 3.0
    other.restore(*one.state())
    assert torch.equal(other_norm.running_mean, norm.running_mean)
