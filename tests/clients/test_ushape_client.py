"""UShapeClient: one optimizer for head and tail, exchanges in order, gradients that fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import ClientError, TextSet, UShapeClient
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import DPForward, Hiding, SentBatch
from flwr_splitmix.links import LinkError
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.strategies import USplitSL
from flwr_splitmix.testing.laws import TextToy
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
    reply = encode(client)
    returned = decode(client, reply)
    encode(client, 1, gradient=returned["gradients"], last=True)
    assert client.steps == 1
    assert not any(torch.equal(before[name], t) for name, t in client.weights().items())


def test_a_gradient_for_messages_that_were_never_decoded_is_not_used() -> None:
    client = attached()
    reply = encode(client)
    encode(client, 1, gradient=[torch.ones_like(reply["messages"][0])])
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
    returned = decode(client, reply := encode(client))
    encode(client, 1, gradient=[torch.zeros_like(reply["messages"][0])])
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
    reply = encode(client)
    with pytest.raises(ClientError, match=r"answers with outputs of shapes \[\(4, 1, 5\)\]"):
        decode(client, {"messages": [reply["messages"][0][:, :1]]})


def test_a_client_without_texts_is_refused() -> None:
    toy = TextToy(clients=1)
    with pytest.raises(ClientError, match="no training data"):
        UShapeClient(toy.head(), toy.tail(), TextSet([], []), device="cpu")


def test_one_batch_has_one_answer() -> None:
    """Averaging 400 answers for one batch would take a perturbation off the gradient."""
    client = attached()
    reply = encode(client)
    decode(client, reply)
    with pytest.raises(ClientError, match="the gradients of one batch twice"):
        decode(client, reply)
    assert decode(client, encode(client, 1))["gradients"]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_outputs_and_gradients_that_are_not_finite_change_nothing(bad: float) -> None:
    """NaN outputs would turn head and tail to NaN."""
    client = attached()
    before = {name: tensor.clone() for name, tensor in client.weights().items()}
    reply = encode(client)
    spoilt = [message.clone() for message in reply["messages"]]
    spoilt[0].view(-1)[0] = bad
    with pytest.raises(ClientError, match="the trunk's output of message 0 has NaN or infinite"):
        client.run("decode", {"number": 0, "outputs": spoilt})
    returned = decode(client, reply)["gradients"]
    returned[0].view(-1)[0] = bad
    with pytest.raises(ClientError, match="the server's gradient of message 0 has NaN or infinite"):
        encode(client, 1, gradient=returned)
    assert all(torch.equal(before[name], tensor) for name, tensor in client.weights().items())


def test_outputs_and_gradients_beyond_all_change_nothing() -> None:
    """Outputs of 1e300 would give gradients of NaN, and a step by them a tail of NaN."""
    client = attached()
    before = {name: tensor.clone() for name, tensor in client.weights().items()}
    reply = encode(client)
    huge = [torch.full_like(message, 1e300) for message in reply["messages"]]
    with pytest.raises(ClientError, match=r"output of message 0 has numbers beyond 1e\+06"):
        client.run("decode", {"number": 0, "outputs": huge})
    decode(client, reply)
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
    """Has a loss whose derivative at the tail's weights is not finite."""

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        weight = next(self.tail.parameters())
        return super().loss(hidden, sent) + (0 * weight).square().sum().sqrt()


@pytest.mark.parametrize("learns", ["all", "tail"])
def test_no_step_is_taken_with_a_gradient_that_overflows(learns: str) -> None:
    client = attached(TextToy(kind=Overflowing, clients=1), learns=learns)
    before = {name: tensor.clone() for name, tensor in client.weights().items()}
    reply = encode(client)
    decode(client, reply)
    zeros = [torch.zeros_like(message) for message in reply["messages"]]
    with pytest.raises(ClientError, match="gradient of its head and tail has NaN or infinite"):
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
    """Or a server could replace head and tail in every round."""
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


@pytest.mark.parametrize("method", ["obfuscate", "recover", "perturb", "logits"])
def test_a_client_that_would_hide_by_itself_is_refused(method: str) -> None:
    """Attacks measure the hiding: what a client does besides is not in what they read."""
    message = rf"Own\.{method} would never be called: .* Define {method} in a subclass of Hiding"
    with pytest.raises(TypeError, match=message):
        type("Own", (UShapeClient,), {method: getattr(Hiding, method)})


class Quiet:
    """Mixed into a client, it would change what the client returns."""

    perturb = Hiding.perturb


def test_a_client_that_inherits_or_is_given_a_method_of_hidings_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Own\.perturb would never be called"):
        type("Own", (Quiet, UShapeClient), {})

    class Later(UShapeClient):
        pass

    Later.perturb = Hiding.perturb  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"Later\.perturb would never be called"):
        TextToy(clients=1, kind=Later).clients_for()


def test_a_client_keeps_the_hiding_that_it_was_made_with() -> None:
    """With another one its epsilon would be that of one, and its messages those of the other."""
    client: Any = attached()
    with pytest.raises(AttributeError, match="hiding"):
        client.hiding = DPForward()


class Prompted(nn.Module):
    """A head that puts two states before those of a text."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.inner(ids, mask)
        return torch.cat([states[:, :1], states[:, :1], states], dim=1)


class Masked(Hiding):
    """Sends the mask of the head's tokens, which are more than those of the text."""

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        states = self.side.head(batch.inputs, batch.mask)
        mask = torch.cat([torch.ones_like(batch.mask[:, :2]), batch.mask], dim=1)
        return SentBatch([states], mask, replace(batch, mask=mask))

    def logits(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        return super().logits(hidden, sent)[:, 2:]


@pytest.mark.parametrize("hiding", [Hiding, Masked])
def test_a_head_may_make_other_tokens_if_its_hiding_sends_their_mask(hiding: type[Hiding]) -> None:
    toy = TextToy(clients=1)
    head = Prompted(toy.head())
    client = UShapeClient(head, toy.tail(), toy.texts(0, 8), hiding=hiding(), device="cpu")
    if hiding is Hiding:
        with pytest.raises(ClientError, match="a hiding must send the mask of the head's tokens"):
            client.attach(ORDER, None)
    else:
        client.attach(ORDER, None)
        decode(client, encode(client))


class Detached(Hiding):
    """Adds noise without gradients, so that the head learns nothing."""

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        sent = super().obfuscate(batch)
        return replace(sent, messages=[message.detach() for message in sent.messages])


@pytest.mark.parametrize("frozen", [False, True], ids=["", "a part frozen"])
def test_messages_without_a_gradient_are_refused(frozen: bool) -> None:
    toy = TextToy(clients=1, hiding=Detached)
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
