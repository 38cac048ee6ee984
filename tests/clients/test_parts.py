"""A batch in parts, at the client: each sample once, charged once, and the step that it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import ClientError, Order, SplitClient
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.mixers import FullShare, NoisyShare, PatchShare, Share
from flwr_splitmix.privacy import GaussianNoise, Ledger
from flwr_splitmix.segments.vision.patch_shuffle import PatchShuffle
from flwr_splitmix.testing.toy import Toy, sgd

TOY = Toy(clients=1, batch_norm=False, dropout=0.0)
N, L, B = TOY.patches, TOY.classes, TOY.batch
ORDER = Order(client=0, seed=9, server_round=1, num_rounds=2)
NOISY = NoisyShare.around(FullShare(), GaussianNoise(sigma_s=20.0, sigma_y=10.0), L)


def client_of(toy: Toy = TOY, **options: Any) -> SplitClient:
    (client,) = toy.make_clients(sgd(0.1), **options)
    client.attach(ORDER, None)
    return client


def whole(client: SplitClient, number: int, gradient: Any, share: Share | None) -> dict[str, Any]:
    plan = None if share is None else [share.to_wire()]
    arguments = {"number": number, "progress": 0.0, "gradient": gradient, "plan": plan}
    return client.run("step", arguments)


FULL = FullShare()


def encode(
    client: SplitClient, part: int, parts: int, share: Share = FULL, number: int = 0
) -> dict[str, Any]:
    return client.run(
        "encode_part",
        {
            "number": number,
            "progress": 0.0,
            "plan": [share.to_wire()],
            "part": part,
            "parts": parts,
        },
    )


def learn(client: SplitClient, part: int, gradient: Any, number: int = 0) -> dict[str, Any]:
    return client.run("learn_part", {"number": number, "part": part, "gradient": gradient})


@pytest.mark.parametrize(
    "share",
    [
        FullShare(),
        PatchShare(patches=N, seed=1, start=1, stop=4, lam=0.5, per_sample=True),
        PatchShare(patches=N, seed=1, start=1, stop=4, lam=0.5, broadcast=True),
    ],
    ids=["full", "mask per sample", "broadcast"],
)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_together_are_the_step_in_one_piece(share: Share, parts: int) -> None:
    one, cut = client_of(), client_of()
    up = whole(one, 0, None, share)
    replies = [encode(cut, part, parts, share) for part in range(parts)]
    smashed = torch.cat([reply["smashed"][0] for reply in replies])
    torch.testing.assert_close(smashed, up["smashed"][0], rtol=0, atol=1e-13)
    assert torch.equal(torch.cat([reply["labels"] for reply in replies]), up["labels"])
    gradient = torch.randn(B, *share.pick(torch.zeros(B, N, TOY.width)).shape[1:]).double()
    whole(one, 1, [gradient], None)
    before = {name: tensor.clone() for name, tensor in cut.weights().items()}
    for part, part_gradient in enumerate(gradient.chunk(parts)):
        assert cut.steps == 0
        assert all(torch.equal(t, before[name]) for name, t in cut.weights().items())
        assert learn(cut, part, [part_gradient]) == {}
    assert one.steps == cut.steps == 1
    assert cut.batches.drawn == one.batches.drawn == 1
    for name, tensor in one.weights().items():
        torch.testing.assert_close(cut.weights()[name], tensor, rtol=0, atol=1e-13)


def test_gradients_may_come_while_later_parts_are_made() -> None:
    client = client_of()
    encode(client, 0, 2)
    learn(client, 0, [torch.ones(B // 2, N, TOY.width).double()])
    encode(client, 1, 2)
    learn(client, 1, None)
    assert client.steps == 1  # on what came


def test_without_any_gradient_no_step_is_taken() -> None:
    client = client_of()
    for part in range(2):
        encode(client, part, 2)
    for part in range(2):
        learn(client, part, None)
    assert client.steps == 0


OUT_OF_TURN: list[tuple[list[Any], str]] = [
    ([(encode, (1, 2))], "a part of a batch that has not begun"),
    ([(encode, (0, 2)), (encode, (1, 4))], "a part of a batch out of turn, or otherwise"),
    ([(encode, (0, 4)), (encode, (2, 4))], "a part of a batch out of turn"),
    ([(encode, (0, 2)), (encode, (1, 2)), (encode, (1, 2))], "a part of a batch out of turn"),
    ([(encode, (0, 2)), (encode, (1, 2, NOISY))], "a part of a batch out of turn, or otherwise"),
    ([(encode, (0, 2)), (encode, (1, 2, FullShare(), 1))], "out of turn, or otherwise"),
    ([(learn, (0, None))], "the gradient of a batch that has not begun"),
    ([(encode, (0, 2)), (learn, (1, None))], "the gradient of a part of a batch out of turn"),
    ([(encode, (0, 2)), (learn, (0, None)), (learn, (0, None))], "the gradient of a part of a b"),
    ([(encode, (0, 2)), (learn, (0, None, 1))], "the gradient of a part of a batch out of turn"),
    *[([(encode, (0, parts))], "cuts a batch of 4 into") for parts in (0, 3, 8, -1, True, "2")],
]


@pytest.mark.parametrize(("calls", "sentence"), OUT_OF_TURN)
def test_a_server_cannot_ask_for_a_sample_twice(calls: Any, sentence: str) -> None:
    client = client_of()
    for function, arguments in calls[:-1]:
        function(client, *arguments)
    function, arguments = calls[-1]
    with pytest.raises(ClientError, match=sentence):
        function(client, *arguments)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_batch_in_parts_is_charged_once_and_before_its_first_part_leaves(parts: int) -> None:
    toy = Toy(clients=1, batch_norm=False)
    budget = PrivacyBudget(delta=1e-5)
    one, cut = (client_of(toy, privacy=budget, repeatable_secrets=False) for _ in range(2))
    whole(one, 0, None, NOISY)
    assert one.epsilon is not None
    assert 0 < one.epsilon < math.inf
    for part in range(parts):
        encode(cut, part, parts, NOISY)
        assert cut.epsilon == one.epsilon
    assert one.guard is not None
    assert cut.guard is not None
    assert Ledger.state_dict(cut.guard.ledger) == Ledger.state_dict(one.guard.ledger)
    encode(cut, 0, parts, NOISY)  # the same batch again costs again
    assert cut.epsilon is not None
    assert cut.epsilon > one.epsilon


def test_what_the_budget_does_not_allow_is_refused_in_every_part() -> None:
    client = client_of(privacy=PrivacyBudget(max_epsilon=1e-6), repeatable_secrets=False)
    assert [encode(client, part, 2, NOISY) for part in range(2)] == [{"budget-spent": True}] * 2
    assert client.epsilon == 0


def test_parts_draw_their_own_noise_and_dropout() -> None:
    """Repeatable secrets repeat from run to run, not from part to part."""

    def noise(**fields: Any) -> list[Tensor]:
        client = client_of(Toy(clients=1, batch_norm=False, **fields))
        return [encode(client, part, 2, NOISY)["smashed"][0] for part in range(2)]

    (a, b), (again, _) = noise(dropout=0.0), noise(dropout=0.0)
    assert torch.equal(a, again)
    assert float((a - b).abs().max()) > 5.0
    client = client_of(Toy(clients=1, batch_norm=False, dropout=0.5))
    first, second = (encode(client, part, 2)["smashed"][0] for part in range(2))
    assert not torch.equal(first == 0, second == 0)


class Centred(nn.Module):
    """Says nothing of the mean that it takes over the batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - inputs.mean(0)


@pytest.mark.parametrize("layer", ["BatchNorm", "PatchShuffle", "a layer across the batch"])
def test_a_segment_that_ties_examples_to_each_other_is_not_cut(layer: str) -> None:
    """The mixing of an edge that shuffles within the batch would protect less in a part of it."""
    if layer == "BatchNorm":
        client = client_of(Toy(clients=1))
    else:
        segment = TOY.lower().double()
        mixing: Any = PatchShuffle(0.4) if layer == "PatchShuffle" else Centred()
        segment.norm = mixing
        client = SplitClient(segment, client_of().batches.data, batch_size=B, device="cpu")
        client.attach(ORDER, None)
    with pytest.raises(ClientError, match=f"has {layer}, .* set micro-batches to 1"):
        encode(client, 0, 2)
    assert client.batches.drawn == 0


def test_another_round_forgets_the_parts_of_the_last() -> None:
    client = client_of()
    encode(client, 0, 2)
    client.attach(ORDER, None)
    with pytest.raises(ClientError, match="has not begun"):
        learn(client, 0, None)
    with pytest.raises(ClientError, match="has not begun"):
        encode(client, 1, 2)


@pytest.mark.parametrize("delivered", [0, 1, 2])
def test_a_step_drops_a_batch_in_parts_that_is_in_flight(delivered: int) -> None:
    """A server of another kind may ask so; its gradient must not be taken for a part's."""
    client = client_of()
    gradient = [torch.ones_like(encode(client, part, 2)["smashed"][0]) for part in range(2)]
    for part in range(delivered):
        learn(client, part, [gradient[part]])
    assert whole(client, 1, None, FULL)["smashed"][0].shape[0] == B
    assert client.steps == delivered // 2
