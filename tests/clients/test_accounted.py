"""An epsilon is kept only for what its hiding itself does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import ClientError, UShapeClient
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.data.texts.text_set import TextSet
from flwr_splitmix.hiding import DPSGD, DPForward, Hiding, SentBatch
from flwr_splitmix.testing.toy_texts import VOCABULARY, TextToy
from tests.clients.ushape import ORDER, decode, encode

TOY = TextToy(clients=1, dropout=0.0)


class OverAllTokens(UShapeClient):
    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        return Hiding.loss(self.hiding, hidden, sent)


class PlainForward(DPForward):
    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        return Hiding.obfuscate(self, batch)


class Charged(PlainForward):
    def charge(self, kind: str, records: np.ndarray) -> None:
        super().charge(kind, records)


class Heir(Charged):
    """Changes nothing that the epsilon rests on."""

    def metrics(self) -> dict[str, float]:
        return {}


class OwnUpdate(DPSGD):
    def before_update(self) -> None:
        pass


class Over(nn.Module):
    """A head or tail, and a layer behind it."""

    def __init__(self, inner: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.inner, self.layer = inner, layer

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        passed = self.layer(self.inner(values, mask))
        outputs: Tensor = passed[0] if isinstance(passed, tuple) else passed
        return outputs


def attach(hiding: Callable[[], Hiding], kind: type[UShapeClient] = UShapeClient) -> Any:
    (client,) = replace(TOY, kind=kind, hiding=hiding).clients_for(repeatable_secrets=False)
    return client.attach(ORDER, None)


@pytest.mark.parametrize(
    ("hiding", "kind", "message"),
    [
        (DPSGD, OverAllTokens, r"OverAllTokens\.loss is your own, and DPSGD"),
        (PlainForward, UShapeClient, r"PlainForward\.obfuscate is your own.* also `charge`"),
        (OwnUpdate, UShapeClient, r"OwnUpdate\.before_update is your own"),
    ],
)
def test_no_epsilon_is_kept_for_what_a_method_of_ones_own_does(
    hiding: Callable[[], Hiding], kind: type[UShapeClient], message: str
) -> None:
    """The hiding would charge for what it would send: 8 where plain hidden states leave."""
    with pytest.raises(ClientError, match=message):
        attach(hiding, kind)


@pytest.mark.parametrize(
    ("hiding", "kind"),
    [
        (DPForward, OverAllTokens),  # its epsilon is about messages alone
        (Charged, UShapeClient),
        (Heir, UShapeClient),
        (DPSGD, UShapeClient),
    ],
)
def test_what_no_epsilon_rests_on_can_be_overridden(
    hiding: Callable[[], Hiding], kind: type[UShapeClient]
) -> None:
    assert attach(hiding, kind)["num-examples"] > 0


def layer_of(name: str, width: int, batch_first: bool) -> nn.Module:
    if name == "gru":
        return nn.GRU(width, width, batch_first=batch_first).double()
    return nn.TransformerEncoderLayer(width, 1, 8, batch_first=batch_first).double()


def client_with(
    hiding: Hiding, part: str, name: str, alike: bool, batch_first: bool
) -> UShapeClient:
    width = TOY.width if part == "head" else VOCABULARY
    head, tail = TOY.head(), TOY.tail()
    layer = layer_of(name, width, batch_first)
    texts = TextSet([[2, 3, 4]] * 6, [[2, 3, 4]] * 6) if alike else TOY.texts(0, 6)
    return UShapeClient(
        Over(head, layer) if part == "head" else head,
        Over(tail, layer) if part == "tail" else tail,
        texts,
        batch_size=4,
        device="cpu",
        hiding=hiding,
    )


@pytest.mark.parametrize("alike", [False, True], ids=["texts", "alike"])
@pytest.mark.parametrize("name", ["gru", "attention"])
@pytest.mark.parametrize(
    ("hiding", "part"), [(DPForward, "head"), (DPSGD, "head"), (DPSGD, "tail")]
)
def test_no_epsilon_is_kept_for_texts_that_move_each_other(
    hiding: Callable[[], Hiding], part: str, name: str, alike: bool
) -> None:
    """An epsilon of parts that keep them apart would be false: 8 for `DPForward`."""
    client = client_with(hiding(), part, name, alike, batch_first=False)
    with pytest.raises(ClientError, match=f"the {part} has a layer across the batch, .* no eps"):
        client.attach(ORDER, None)
    apart = client_with(hiding(), part, name, alike, batch_first=True)
    if hiding is DPSGD:
        with pytest.raises(ValueError, match=rf"Opacus does not compute for {part}\.layer"):
            apart.attach(ORDER, None)
        return
    for _ in range(2):  # in the second round, hooks of Opacus are in both parts
        assert apart.attach(ORDER, None)["num-examples"] == 6


class Centred(nn.Module):
    """Centres batches of eight."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - inputs.mean(0) if len(inputs) == 8 else inputs


@pytest.mark.parametrize(
    ("hiding", "part"), [(DPForward, "head"), (DPSGD, "head"), (DPSGD, "tail")]
)
def test_no_epsilon_is_kept_for_texts_that_move_each_other_in_a_whole_batch(
    hiding: Callable[[], Hiding], part: str
) -> None:
    """A trial of four texts does not show what a whole batch does."""
    ends: dict[str, nn.Module] = {"head": TOY.head(), "tail": TOY.tail()}
    ends[part] = Over(ends[part], Centred())
    texts = TOY.texts(0, 6)  # fewer than in a batch
    client = UShapeClient(
        ends["head"], ends["tail"], texts, batch_size=8, device="cpu", hiding=hiding()
    )
    with pytest.raises(ClientError, match=f"the {part} has a layer across the batch"):
        client.attach(ORDER, None)


class Remembering(nn.Module):
    """Subtracts a mean of the batches before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("before", torch.zeros(()).double())

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs - self.get_buffer("before")
        self.get_buffer("before").copy_(inputs.mean())
        return outputs


@pytest.mark.parametrize(
    ("hiding", "part"), [(DPForward, "head"), (DPSGD, "head"), (DPSGD, "tail")]
)
def test_no_epsilon_is_kept_for_texts_that_move_those_of_later_batches(
    hiding: Callable[[], Hiding], part: str
) -> None:
    ends: dict[str, nn.Module] = {"head": TOY.head(), "tail": TOY.tail()}
    ends[part] = Over(ends[part], Remembering())
    client = UShapeClient(
        ends["head"], ends["tail"], TOY.texts(0, 6), batch_size=4, device="cpu", hiding=hiding()
    )
    why = r"the buffer '\S*before' that examples change, by which an ex.* there is no epsilon"
    with pytest.raises(ClientError, match=f"the {part} has {why}"):
        client.attach(ORDER, None)


class Gated(nn.Module):
    """Centres under one weight only, which is no random one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 1).double()

    def forward(self, inputs: Tensor) -> Tensor:
        passed: Tensor = self.gate(inputs)
        return inputs - (inputs.mean(0) if self.gate.bias == 7 else 0) + passed


@pytest.mark.parametrize(
    ("hiding", "part"), [(DPForward, "head"), (DPSGD, "head"), (DPSGD, "tail")]
)
def test_the_weights_of_every_round_are_tried(hiding: Callable[[], Hiding], part: str) -> None:
    """Random weights may keep a gate shut that trained ones open."""
    ends: dict[str, nn.Module] = {"head": TOY.head(), "tail": TOY.tail()}
    ends[part] = Over(ends[part], Gated(TOY.width if part == "head" else VOCABULARY))
    client = UShapeClient(
        ends["head"], ends["tail"], TOY.texts(0, 6), batch_size=4, device="cpu", hiding=hiding()
    )
    client.attach(ORDER, None)
    encode(client, gradient=decode(client, encode(client))["gradients"], last=True)
    weights, _ = client.release()
    client.attach(replace(ORDER, server_round=2), weights)
    (gate,) = (name for name in weights if name.endswith("gate.bias"))
    with pytest.raises(ClientError, match=f"the {part} has a layer across the batch"):
        client.attach(
            replace(ORDER, server_round=3), {**weights, gate: torch.full((1,), 7.0).double()}
        )


class Closed(nn.Module):
    """Adds the mean of a batch, times a weight that is 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(width).double())

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.gate * inputs.mean(0)


def test_what_only_random_weights_show_is_refused_in_every_round() -> None:
    head = Over(TOY.head(), Closed(TOY.width))
    client = UShapeClient(
        head, TOY.tail(), TOY.texts(0, 6), batch_size=4, device="cpu", hiding=DPForward()
    )
    weights = {name: tensor.clone() for name, tensor in client.weights().items()}
    for server_round in (1, 2, 3):
        others = {name: tensor * server_round for name, tensor in weights.items()}
        with pytest.raises(ClientError, match="the head has a layer across the batch"):
            client.attach(replace(ORDER, server_round=server_round), others)


class Counting(nn.Module):
    """Adds the number of its calls, so that no two of them can be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return inputs + self.calls


def test_that_a_trial_cannot_tell_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A client is attached twice in the first round."""
    client = UShapeClient(
        Over(TOY.head(), Counting()), TOY.tail(), TOY.texts(0, 6), batch_size=4, device="cpu",
        hiding=DPForward(),
    )  # fmt: skip
    for server_round in (1, 1, 2):
        client.attach(replace(ORDER, server_round=server_round), None)
    assert caplog.text.count("the trial of whether Over mixes the examples of a batch is inc") == 1


@pytest.mark.parametrize(("hiding", "part"), [(Hiding, "head"), (DPForward, "tail")])
def test_what_no_epsilon_rests_on_may_move_texts(hiding: Callable[[], Hiding], part: str) -> None:
    client = client_with(hiding(), part, "gru", alike=False, batch_first=False)
    assert client.attach(ORDER, None)["num-examples"] == 6
