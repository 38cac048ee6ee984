"""Of data under noise, or that an epsilon must cover, errors tell the server nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from flwr_splitmix.clients import ClientError, PrivacyBudget, SplitClient, UShapeClient
from flwr_splitmix.hiding import DPForward
from flwr_splitmix.links.errors import own_sentence, public_sentence
from flwr_splitmix.mixers import FullShare, NoisyShare, Share
from flwr_splitmix.privacy import GaussianNoise
from tests.clients.own_segments import INPUTS, LABELS, ORDER, Lower, Part, Steep

NOISE = GaussianNoise(sigma_s=20.0, sigma_y=10.0, clip_norm=1.5)
NOISY = NoisyShare.around(FullShare(), NOISE, 3)


class Turning(Dataset[Any]):
    """Its inputs become others after the client was attached."""

    def __init__(self) -> None:
        self.turn: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return 8

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return examples."""
        inputs = INPUTS[indices]
        return inputs if self.turn is None else self.turn(inputs), LABELS[indices]


class Free(Lower):
    """Makes a patch of each row that an input has."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs) if inputs.dim() == 3 else super().forward(inputs)


def wide(inputs: Tensor) -> Tensor:
    return inputs.repeat(1, 2)


def double(inputs: Tensor) -> Tensor:
    return inputs.double()


def rows(inputs: Tensor) -> Tensor:
    return inputs[:, None].repeat(1, 11, 1)


def nothing(inputs: Tensor) -> Tensor:
    return torch.full_like(inputs, torch.nan)


ODD = {
    wide: r"inputs \(10,\) do not fit the .*: mat1 and mat2 shapes",
    double: r"inputs are float64, the .* float32: convert them",
}
STEP = "inputs do not fit the lower segment; the log of its node says more"
BEGIN: dict[str, Any] = {"number": 0, "progress": 0.0}


def ask(client: SplitClient, share: Share, parts: int) -> dict[str, Any]:
    plan = [share.to_wire()]
    if parts:
        return client.run("encode_part", {**BEGIN, "plan": plan, "part": 0, "parts": parts})
    return client.run("step", {**BEGIN, "plan": plan, "gradient": None})


def begun(
    turn: Callable[[Tensor], Tensor], privacy: PrivacyBudget | None, segment: nn.Module | None
) -> SplitClient:
    data = Turning()
    client = SplitClient(segment or Lower(), data, batch_size=4, device="cpu", privacy=privacy)
    client.attach(ORDER, None)
    data.turn = turn
    return client


GUARDED = [None, PrivacyBudget(max_epsilon=50.0), PrivacyBudget(allow_plain=False)]


@pytest.mark.parametrize("parts", [0, 2])
@pytest.mark.parametrize("privacy", GUARDED)
@pytest.mark.parametrize(("turn", "whole"), [*ODD.items(), (rows, r"batch are \(batch, 11, 6\)")])
def test_a_lower_segments_error_says_nothing_of_a_batch(
    turn: Any, whole: str, privacy: PrivacyBudget | None, parts: int
) -> None:
    """Not even the batch's shape or its type."""
    client = begun(turn, privacy, Free())
    with pytest.raises(ClientError, match=whole) as plain:
        ask(begun(turn, None, Free()), FullShare(), parts)
    assert public_sentence(plain.value) == own_sentence(plain.value)
    with pytest.raises(ClientError) as raised:
        ask(client, NOISY, parts)
    assert public_sentence(raised.value) == STEP
    assert own_sentence(raised.value) == own_sentence(plain.value)


@pytest.mark.parametrize("parts", [0, 2])
@pytest.mark.parametrize("privacy", GUARDED)
def test_nor_whether_it_has_numbers_that_are_not_finite(
    privacy: PrivacyBudget | None, parts: int
) -> None:
    with pytest.raises(ClientError, match="its data have NaN"):
        ask(begun(nothing, None, None), FullShare(), parts)
    reply = ask(begun(nothing, privacy, None), NOISY, parts)
    assert set(reply) == {"smashed", "labels"}


@pytest.mark.parametrize(
    ("inputs", "whole"),
    [
        (wide(INPUTS), ODD[wide]),
        (double(INPUTS), ODD[double]),
        (rows(INPUTS)[:, None], "smashed data must be .* got shape"),
    ],
)
def test_a_description_says_nothing_of_the_first_examples(inputs: Tensor, whole: str) -> None:
    data: Any = TensorDataset(inputs, LABELS)
    segment = nn.Sequential(nn.Linear(5, 6))
    with pytest.raises(ClientError, match=whole):
        SplitClient(segment, data, batch_size=4, device="cpu").attach(ORDER, None)
    privacy = PrivacyBudget(max_epsilon=50.0)
    client = SplitClient(segment, data, batch_size=4, device="cpu", privacy=privacy)
    with pytest.raises(ClientError) as raised:
        client.attach(ORDER, None)
    assert public_sentence(raised.value) == (
        "its first examples do not fit the lower segment, or it makes of them no smashed data "
        "(batch, patches, width); the log of its node says more"
    )
    assert re.search(whole, own_sentence(raised.value))


@pytest.mark.parametrize("turn", [wide, double])
def test_nor_does_the_description_of_a_head(turn: Any) -> None:
    data: Any = TensorDataset(turn(INPUTS), LABELS)
    for hiding in (None, DPForward()):
        client = UShapeClient(Part(), Part(3, 6), data, batch_size=4, hiding=hiding, device="cpu")
        with pytest.raises(ClientError) as raised:
            client.attach(ORDER, None)
        assert re.search(ODD[turn], own_sentence(raised.value))
        public = public_sentence(raised.value)
        assert (public == own_sentence(raised.value)) == (hiding is None)
    assert public.startswith("its first examples do not fit the head, or it makes of them no")


@pytest.mark.parametrize(("turn", "whole"), ODD.items())
def test_a_heads_error_says_nothing_of_a_batch(turn: Any, whole: str) -> None:
    for hiding, message in ((None, None), (DPForward(), "inputs do not fit the head; the log of")):
        data = Turning()
        client = UShapeClient(Part(), Part(3, 6), data, batch_size=4, hiding=hiding, device="cpu")
        client.attach(ORDER, None)
        data.turn = turn
        with pytest.raises(ClientError) as raised:
            client.run("encode", {**BEGIN, "gradient": None})
        assert re.search(whole, own_sentence(raised.value))
        assert public_sentence(raised.value).startswith(message or own_sentence(raised.value))


def stepped(label: int, hiding: DPForward | None, learns: Any) -> list[Any]:
    """Return what a client answers in a round in which all its examples have one label."""
    data: Any = TensorDataset(INPUTS, torch.full((8,), label))
    client = UShapeClient(
        Part(), Steep(), data, batch_size=4, hiding=hiding, learns=learns, device="cpu"
    )
    client.attach(ORDER, None)
    answers = []
    for number in range(2):
        reply = client.run("encode", {**BEGIN, "number": number, "gradient": None})
        answers.append({name: type(value) for name, value in reply.items()})
        answers.append(client.run("decode", {"number": number, "outputs": reply["messages"]}))
    answers.append(client.run("encode", {**BEGIN, "number": 2, "gradient": None, "last": True}))
    return [*answers, client.release()[1]]


def test_a_tails_gradient_that_overflows_tells_no_label(caplog: pytest.LogCaptureFixture) -> None:
    """Whether a client fails must not depend on the label of the example that a server chooses."""
    no_step = "the gradient of its head and tail has NaN .* so that no step is taken"
    with pytest.raises(ClientError, match=no_step):
        stepped(1, None, "tail")
    right, wrong = (stepped(label, DPForward(), "tail") for label in (0, 1))
    assert right == wrong
    assert right[-1]["num-steps"] == 2
    assert [no for no in caplog.messages if "so that no step is taken" in no] == [
        "the gradient of a client's head and tail has NaN or infinite numbers, so that no step is "
        "taken: training has diverged, or the server sends far too large numbers"
    ]


def test_both_shapes_say_by_the_same_call_whether_an_error_may_tell_of_the_data() -> None:
    data: Any = TensorDataset(INPUTS, LABELS)
    limit = PrivacyBudget(max_epsilon=1.0)
    for privacy, hiding in ((None, None), (limit, DPForward())):
        both = (
            SplitClient(Lower(), data, privacy=privacy, device="cpu"),
            UShapeClient(Part(), Part(3, 6), data, batch_size=4, hiding=hiding, device="cpu"),
        )
        assert [client.may_name_data() for client in both] == [privacy is None] * 2
