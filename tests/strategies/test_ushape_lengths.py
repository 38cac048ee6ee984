"""Clients that send a number of tokens that the trunk does not take: only they are left out."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.segments import VisionParts, split_vision_parts
from flwr_splitmix.server.segments.trunk import MixingTrunkError
from flwr_splitmix.strategies import DPSGDSL, USplitSL
from flwr_splitmix.testing.laws import TextToy, sgd
from flwr_splitmix.testing.toy_texts import text_toy
from tests.strategies.test_ushape import Seen
from tests.strategies.test_ushape_hostile import failures_of, finite

Reply = dict[str, Any]


def shorter(reply: Reply, tokens: int = -1) -> Reply:
    """Cut the messages of a reply short: by one token, or to a number."""
    cut = {
        "messages": [m[:, :tokens] for m in reply["messages"]],
        "mask": reply["mask"][:, :tokens],
    }
    return {**reply, **cut}


class Short(UShapeClient):
    """Sends a token less than it has, as client 1, from the first step or in an evaluation."""

    methods: tuple[str, ...] = ("encode", "encode_test")

    def run(self, method: str, arguments: Any) -> Reply:
        reply = super().run(method, arguments)
        wrong = method in self.methods and self.order.client == 1 and "messages" in reply
        return shorter(reply) if wrong else reply


class ShortTests(Short):
    methods = ("encode_test",)


def small_vit() -> VisionParts:
    return split_vision_parts(
        image_size=16, patch_size=8, depth=3, embed_dim=8, num_heads=2, num_classes=3, seed=0
    )


def small_xcit() -> VisionParts:
    return split_vision_parts(
        "xcit_nano_12_p16_224", image_size=32, patch_size=16, depth=2, num_classes=3, seed=0
    )


def image_clients(kind: type[UShapeClient], model: VisionParts) -> list[UShapeClient]:
    source = torch.Generator().manual_seed(0)
    pixels = torch.rand(6, *model.head.input_shape, generator=source)
    data: Any = TensorDataset(pixels, torch.randint(3, (6,), generator=source))
    return [
        kind(
            deepcopy(model.head), deepcopy(model.tail), data, test_data=data, batch_size=3,
            optimizer=sgd(), device="cpu",
        )
        for _ in range(3)
    ]  # fmt: skip


@pytest.mark.parametrize("make", [small_vit, small_xcit])
def test_an_image_with_a_token_less_costs_only_its_own_client(make: Any) -> None:
    """An error of the trunk, which knows each token's place, would end the run for all."""
    model, observer = make(), Seen()
    strategy = USplitSL(model.trunk, device="cpu", steps_per_round=2, observers=[observer])
    strategy.fit(image_clients(Short, model), 1)
    (event,) = observer.rounds
    tokens = model.trunk.geometry.tokens
    message = f"sent 3 examples of {tokens - 1} tokens; expected 1..3 examples of {tokens} tokens"
    assert event.failures == {1: message}
    assert event.steps == 2
    assert finite(strategy.trunk.module)


def test_a_test_image_with_a_token_less_costs_only_its_own_client() -> None:
    model, observer = small_xcit(), Seen()
    strategy = USplitSL(
        model.trunk, device="cpu", steps_per_round=1, evaluation="federated", observers=[observer]
    )
    strategy.fit(image_clients(ShortTests, model), 1)
    scored = observer.rounds[0].evaluation
    assert scored is not None
    assert scored.examples == 2 * 6


class Fussy(nn.Module):
    """The toy's trunk, which knows only texts of some lengths, and says so in its own way."""

    def __init__(self, toy: TextToy, wrong: Any, error: type[Exception] = KeyError) -> None:
        super().__init__()
        self.inner, self.wrong, self.error = toy.server(), wrong, error

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Map texts, unless their length is wrong."""
        if self.wrong(hidden.shape[1]):
            raise self.error("no such\nplace")
        output: Tensor = self.inner(hidden, mask)
        return output


class OneToken(UShapeClient):
    """Sends the first token of each text alone, as client 1."""

    def run(self, method: str, arguments: Any) -> Reply:
        reply = super().run(method, arguments)
        return shorter(reply, 1) if self.order.client == 1 and "messages" in reply else reply


@pytest.mark.parametrize("error", [KeyError, RuntimeError, ValueError, IndexError])
def test_a_length_on_which_the_trunk_fails_costs_only_its_own_clients(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    toy = TextToy(kind=OneToken)
    failures = failures_of(toy, Fussy(toy, lambda tokens: tokens == 1, error))
    message = (
        "the trunk does not take its messages of 1 token, but those of other clients; cut head"
    )
    assert failures.keys() == {1}
    assert failures[1].startswith(message)
    assert any("the trunk failed on messages: " in line for line in caplog.messages)


def test_a_length_on_which_the_trunk_fails_in_an_evaluation_costs_only_its_own_clients() -> None:
    class OneTestToken(OneToken):
        def run(self, method: str, arguments: Any) -> Reply:
            run = super().run if method == "encode_test" else super(OneToken, self).run
            return run(method, arguments)

    toy, observer = TextToy(kind=OneTestToken, tests=4), Seen()
    strategy = USplitSL(
        Fussy(toy, lambda tokens: tokens == 1), device="cpu", steps_per_round=1,
        evaluation="federated", observers=[observer],
    )  # fmt: skip
    strategy.fit(toy.clients_for(strategy), 1)
    scored = observer.rounds[0].evaluation
    assert scored is not None
    assert scored.examples == 2 * 4


def test_a_trunk_that_fails_on_every_length_ends_the_run() -> None:
    toy = TextToy(kind=OneToken)
    with pytest.raises(KeyError, match="no such"):
        failures_of(toy, Fussy(toy, lambda tokens: True))


class Mixing(Fussy):
    """Mixes the examples of a batch."""

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        output = super().forward(hidden, mask)
        return output + output.mean(0, keepdim=True)


@pytest.mark.parametrize("liar", [0, 1])
def test_a_length_that_the_trunk_does_not_take_leaves_it_no_less_tried(liar: int) -> None:
    """A trial with such messages tells nothing: a client could have a mixing trunk let pass."""

    class Liar(UShapeClient):
        def run(self, method: str, arguments: Any) -> Reply:
            reply = super().run(method, arguments)
            return shorter(reply, 1) if self.order.client == liar and "messages" in reply else reply

    toy = text_toy("DPSGDSL", clients=3, kind=Liar)
    strategy = DPSGDSL(Mixing(toy, lambda tokens: tokens == 1), device="cpu", steps_per_round=1)
    with pytest.raises(MixingTrunkError, match="the trunk has a layer across the batch"):
        strategy.fit(toy.clients_for(strategy), 1)
