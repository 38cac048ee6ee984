"""`learns="tail"`: no gradient leaves a client, and its tail learns as it would by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import ClientError, MixGuardClient, UShapeClient
from flwr_splitmix.hiding import MixGuardOptions, NaiveMix
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import USHAPE_STRATEGIES, UShapeStrategy, USplitFL, USplitSL
from flwr_splitmix.testing.laws import TextToy, check_ushape_equals_whole, check_ushape_wire, sgd
from flwr_splitmix.testing.recording import recorded_bytes
from flwr_splitmix.testing.toy_texts import ToyTrunk, text_toy

NAMES = sorted(name for name, kind in USHAPE_STRATEGIES.items() if not kind.hiding.teaches_head)


class TailAlone(UShapeClient):
    """A plain client, or one with a hiding, whose tail alone learns."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, learns="tail", **options)


class GuardedTailAlone(MixGuardClient):
    """The same of MixGuard."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, learns="tail", **options)


KINDS = {MixGuardClient: GuardedTailAlone, UShapeClient: TailAlone}


def toy_of(name: str, **fields: Any) -> TextToy:
    toy = text_toy(name, **fields)
    return replace(toy, kind=KINDS[toy.kind])


def weights_of(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_crosses_either_cut(name: str) -> None:
    events = check_ushape_wire(USHAPE_STRATEGIES[name], toy_of(name, tests=6))
    answers = [e for e in events if e.method == "decode" and e.direction == "up"]
    assert answers
    for answer in answers:
        assert answer.payload == {"gradients": []}
        assert recorded_bytes(answer.payload) == answer.nbytes == 0
    assert {
        e.payload["gradient"] for e in events if e.method == "encode" and "gradient" in e.payload
    } == {None}


@pytest.mark.parametrize("name", NAMES)
def test_tails_learn_and_nothing_else_does(name: str) -> None:
    toy = toy_of(name, clients=2)
    strategy = USHAPE_STRATEGIES[name](toy.server(), device="cpu", steps_per_round=3)
    clients = toy.clients_for(strategy)
    before = [(weights_of(c.head), weights_of(c.tail)) for c in clients]
    trunk = weights_of(strategy.trunk.module)
    strategy.fit(clients, 2)
    for client, (head, tail) in zip(clients, before, strict=True):
        assert all(torch.equal(head[n], t) for n, t in client.head.state_dict().items())
        assert not any(torch.equal(tail[n], t) for n, t in client.tail.state_dict().items())
    after = strategy.trunk.module.state_dict()
    assert all(torch.equal(trunk[n], t) for n, t in after.items())
    (row,) = strategy.rows[-1:]
    assert row["steps"] == 3


@dataclass(frozen=True)
class StillTrunk(TextToy):
    """A toy whose trunk does not learn on the unsplit side either."""

    def server(self) -> ToyTrunk:
        trunk = super().server()
        trunk.requires_grad_(False)
        return trunk


@pytest.mark.parametrize("task", ["classification", "generation"])
@pytest.mark.parametrize(
    ("kind", "hiding"), [(TailAlone, None), (TailAlone, NaiveMix), (GuardedTailAlone, None)]
)
def test_a_tails_step_is_that_of_the_unsplit_model(
    kind: type[UShapeClient], hiding: type[NaiveMix] | None, task: Any
) -> None:
    exact = MixGuardOptions(secret_tokens=2, max_length=32, calibration_epochs=0, perturbation=None)
    toy = StillTrunk(kind=kind, hiding=hiding, task=task, options=exact)
    check_ushape_equals_whole(USplitSL, toy)


def trained(clients: list[UShapeClient]) -> UShapeStrategy:
    strategy = USplitSL(
        TOY.server(), device="cpu", steps_per_round=2, optimizer=sgd(0.1), schedule=constant
    )
    strategy.fit(clients, 1)
    return strategy


TOY = TextToy(clients=2, dropout=0.0)


def test_who_returns_none_does_not_thin_the_trunks_gradient_out() -> None:
    """The trunk's step is the mean over those that returned a gradient, here one of two."""
    whole, silent = TOY.clients_for(), replace(TOY, kind=TailAlone).clients_for()
    both = trained([whole[0], silent[1]]).trunk.module.state_dict()
    alone = trained([TOY.clients_for()[0]]).trunk.module.state_dict()
    for name, tensor in both.items():
        torch.testing.assert_close(tensor, alone[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("alone", [0, 2])
def test_most_clients_decide_what_is_averaged(alone: int) -> None:
    """No single client decides: if only its tail learned, all the others would be left out."""
    toy = replace(TOY, clients=3)
    clients = list(toy.clients_for())
    clients[alone] = replace(toy, kind=TailAlone).clients_for()[alone]
    strategy = USplitFL(toy.server(), device="cpu", steps_per_round=1)
    result = strategy.fit(clients, 1)
    assert any(name.startswith("head.") for name in result.arrays)
    assert [row["clients_alive"] for row in strategy.rows] == [2]


def test_what_cannot_be_learned_is_named() -> None:
    with pytest.raises(ValueError, match="learns is 'head'; it must be one of all, tail"):
        TOY.clients_for(learns="head")
    tail = TOY.tail().requires_grad_(False)
    with pytest.raises(ClientError, match="learns is 'tail', but the tail has nothing to learn"):
        UShapeClient(TOY.head(), tail, TOY.texts(0, 4), learns="tail", device="cpu")
