"""A node with a budget of epsilon 1, against any requests of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import ClientError
from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import FullShare, InputShare, PatchShare, WeightedShare
from tests.links.node.worst_server import TOY, L, N, Node, noisy, refused


@pytest.mark.parametrize("plan", [[], [None], [None, None]])
def test_labels_leave_only_through_a_share(node: Node, plan: Any) -> None:
    """A plan without shares could otherwise get all labels of the batch at epsilon 0."""
    node.begin()
    refused(node.step(plan), "no share for this client")
    assert node.client.epsilon == 0
    assert node.audit()[-1]["refused"].startswith("the server's plan has no share")
    node.end()


@pytest.mark.parametrize(
    "share",
    [
        FullShare().to_wire(),
        noisy(sigma_s=0.0),
        noisy(sigma_s=1e-170, sigma_y=1e-170),
        noisy(WeightedShare(lam=0.01), sigma_s=1e-170, sigma_y=1e-170),
        noisy(sigma_s=1e-9),
        noisy(clip_norm=1e-170, sigma_s=1e-170),
        noisy(clip="none"),
    ],
    ids=["plain", "labels", "tiny", "tiny-mixup", "rounding", "tiny-clip", "no-clip"],
)
def test_noise_that_hides_nothing_is_refused(node: Node, share: dict[str, Any]) -> None:
    node.begin()
    outcome = node.step([share])
    withheld = outcome.error is not None or outcome.reply == {"budget-spent": True}
    assert withheld, outcome
    assert node.client.epsilon == 0
    node.end()


PINS = {"link-via": "mixer.example:9444"}


class Cast(nn.Module):
    """A lower segment in another dtype."""

    def __init__(self, lower: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.lower = lower.to(dtype)

    def forward(self, inputs: Tensor) -> Any:
        return self.lower(inputs.to(self.dtype))


@pytest.mark.parametrize(
    ("changes", "pins", "dtype", "passes"),
    [
        ({"wire_dtype": "int4"}, PINS, torch.float64, False),
        ({"wire_dtype": "int4"}, PINS, torch.float32, False),
        ({"wire_dtype": "int4"}, {}, torch.float64, True),
        ({"wire_dtype": "float32"}, PINS, torch.float64, False),
        ({"wire_dtype": "float32"}, PINS, torch.float32, True),
        ({}, PINS, torch.float64, True),
    ],
)
def test_a_node_with_a_mixer_of_its_own_rounds_nothing_that_is_added_up(
    changes: dict[str, Any], pins: dict[str, Any], dtype: torch.dtype, passes: bool, tmp_path: Path
) -> None:
    node = Node(tmp_path, pins)
    node.lower = Cast(TOY.lower(), dtype)
    node.begin(**changes)
    patches = PatchShare(lam=0.5, patches=N, seed=1, start=0, stop=N // 2).to_wire()
    assert node.step([patches]).reply is not None
    outcome = node.step([WeightedShare(lam=0.5).to_wire()], number=1)
    if passes:
        assert outcome.reply is not None
    else:
        refused(outcome, "sends it no rounded numbers to add up")
    node.end()


class NotANumberWhereBright(nn.Module):
    """A crafted lower segment: NaN where the input is bright."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        smashed: Tensor = self.inner(inputs)
        return smashed.where(smashed > 0, torch.nan)


def test_the_places_of_numbers_that_are_not_finite_do_not_leave(node: Node) -> None:
    """They would reveal the image's mask at sigma 1000 and epsilon 0.012."""
    node.lower = NotANumberWhereBright(TOY.lower().double())
    node.begin()
    reply = node.step([noisy(sigma_s=1000.0, sigma_y=1000.0)]).reply
    assert reply is not None
    assert reply["smashed"][0].isfinite().all()
    node.end()


class Gated(nn.Module):
    """A lower segment that mixes its batch once training opens a gate."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.gate = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        smashed: Tensor = self.inner(inputs)
        return smashed + self.gate * smashed.mean(0, keepdim=True)


def test_a_gate_that_would_mix_the_batch_leaves_no_epsilon(node: Node) -> None:
    """In the server's first weights the gate is closed."""
    node.lower = Gated(TOY.lower().double())
    described = node.begin()
    assert described["across-batch"]
    refused(node.step([noisy()]), "another layer across the batch")
    node.end()


class Attending(nn.Module):
    """A lower segment whose examples attend to each other: `batch_first` is forgotten."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.block = nn.TransformerEncoderLayer(TOY.width, 1, 8, dropout=0.0)

    def forward(self, inputs: Tensor) -> Tensor:
        smashed: Tensor = self.block(self.inner(inputs.float()))
        return smashed


@pytest.mark.parametrize("value", [0.0, 1e6])
def test_no_weights_of_the_server_hide_a_layer_across_the_batch(node: Node, value: float) -> None:
    """Beside one bias of 1e6, what examples do to each other is small."""
    node.lower = Attending(TOY.lower().float())
    weights = {name: t.clone() for name, t in node.lower.state_dict().items()}
    weights["block.norm2.bias"][0] = value
    assert node.begin(arrays=weights)["across-batch"]
    refused(node.step([noisy()]), "another layer across the batch")
    node.end()


class InFloat32(nn.Module):
    """A lower segment in float32, as models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TOY.lower().float()

    def forward(self, inputs: Tensor) -> Tensor:
        smashed: Tensor = self.inner(inputs.float())
        return smashed


@pytest.mark.parametrize("clip", ["patch", "sample"])
def test_smashed_data_made_small_by_the_servers_weights_are_clipped(node: Node, clip: str) -> None:
    """They would leave as they are, under noise a billionth of their size, at epsilon 0.015."""
    node.lower = InFloat32()
    weights = {name: t * 1e-24 for name, t in node.lower.state_dict().items()}
    node.begin(arrays=weights)
    share = noisy(clip=clip, clip_norm=1e-36, sigma_s=1e-33, sigma_y=1e3)
    reply = node.step([share]).reply
    assert reply is not None
    assert reply["smashed"][0].abs().max() < 1e-32
    node.end(finish=False)


@pytest.mark.parametrize("classes", [1, 2, L])
def test_no_error_tells_the_largest_label_of_a_batch(node: Node, classes: int) -> None:
    """Fewer classes than labels, as an error of its own, would tell all labels by some trials."""
    plain = InputShare(rows=2, columns=3, classes=classes, parts=((0, FullShare()),), seed=1)
    node.begin()
    refused(node.step([plain.to_wire()]), "what is asked of it has no epsilon")
    reply = node.step([{**noisy(), "classes": classes}]).reply
    assert reply is not None
    assert tuple(reply["labels"][0].shape) == (TOY.batch, classes)
    node.end(finish=False)


@pytest.mark.parametrize("clip_norm", [1.0, 1e-60])
def test_a_ratio_of_zero_sends_zeros_without_signs(node: Node, clip_norm: float) -> None:
    """The signs would be those of the smashed data and, after some repeats, tell the labels."""
    node.begin()
    share = noisy(
        WeightedShare(lam=0.0),
        sigma_s=0.0,
        sigma_y=1e-30,
        clip_norm=clip_norm,
        label_noise="before",
        clamp_labels=False,
    )
    reply = node.step([share]).reply
    assert reply is not None
    for tensor in (*reply["smashed"], *reply["labels"]):
        assert not tensor.any()
        assert not tensor.signbit().any()
    assert node.client.epsilon == 0
    node.end()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e9])
def test_weights_and_gradients_that_are_no_models_are_refused(node: Node, bad: float) -> None:
    weights = {name: t.clone() for name, t in TOY.lower().state_dict().items()}
    name = next(iter(weights))
    weights[name].view(-1)[0] = bad
    with pytest.raises(ClientError, match="the server's lower segment"):
        node.begin(arrays=weights)
    node.end(finish=False)
    node.begin()
    reply = node.step([noisy()]).reply
    assert reply is not None
    gradient = torch.zeros_like(reply["smashed"][0])
    gradient.view(-1)[0] = bad
    refused(node.step([noisy()], 1, [gradient]), "the server's gradient of pass 0")
    node.end()


def test_large_weights_and_gradients_are_refused_as_integers_too(node: Node) -> None:
    weights = TOY.lower().state_dict()
    huge = {name: torch.full(t.shape, 10**18) for name, t in weights.items()}
    with pytest.raises(ClientError, match="the server's lower segment: position has numbers beyo"):
        node.begin(arrays=huge)
    node.end(finish=False)
    node.begin()
    reply = node.step([noisy()]).reply
    assert reply is not None
    gradient = torch.full(reply["smashed"][0].shape, 10**18)
    refused(node.step([noisy()], 1, [gradient]), "the server's gradient of pass 0")
    node.end()


def test_a_ticket_for_another_client_is_refused(node: Node) -> None:
    with pytest.raises(LinkError, match=r"is for client 1, and this node.s partition-id is 0"):
        node.begin(client=1)


@pytest.mark.parametrize(
    ("method", "arguments", "why"),
    [
        ("encode_test", {"kind": "benchmark", "start": 0, "stop": 10**13}, "there are 12"),
        ("encode_test", {"kind": "benchmark", "start": -1, "stop": 2}, "there are 12"),
        ("step", {"plan": [noisy()] * 65}, "has 65 passes; at most 64 are allowed"),
        (
            "step",
            {"plan": [{**noisy(), "classes": 10**6}]},
            "asks for labels of 1000000 numbers for each example",
        ),
    ],
    ids=["tests", "negative", "passes", "classes"],
)
def test_nothing_costs_a_client_more_than_its_own_sizes(
    node: Node, method: str, arguments: dict[str, Any], why: str
) -> None:
    node.config["allow-benchmark"] = True
    node.options = {"benchmark_data": TOY.data(0)}
    node.begin()
    if method == "step":
        arguments = {"number": 0, "progress": 0.0, "gradient": None, **arguments}
    refused(node.ask(method, **arguments), why)
    node.end(finish=False)
