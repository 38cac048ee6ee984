"""The trial before the first round finds whether gradients are those of single examples."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, UShapeClient
from flwr_splitmix.hiding import DPSGD, watched_rows
from flwr_splitmix.hiding.unfit import UnfitError
from flwr_splitmix.hiding.watched_rows import try_gradients
from flwr_splitmix.links.host import logged_reason
from tests.hiding.dp_sgd import ORDER, TOY

TOKENS, WIDTH = 4, 6
SERIES, LABELS = torch.randn(12, TOKENS, WIDTH), torch.arange(12) % 2


class TokensFirst(nn.Module):
    """A layer that gets (T, b, d), as torch's own transformers want by default."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, series: Tensor) -> Tensor:
        outputs: Tensor = self.linear(series.transpose(0, 1)).transpose(0, 1)
        return outputs


class UsedTwice(nn.Module):
    """A weight that is used in its layer and outside of it, there times `gate`."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Parameter(torch.full((), gate), requires_grad=False)

    def forward(self, series: Tensor) -> Tensor:
        within: Tensor = self.linear(series)
        return within + self.gate * F.linear(series, self.linear.weight)


class First(nn.Module):
    """The first of several outputs of a layer, which gets the input several times."""

    def __init__(self, layer: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, series: Tensor) -> Tensor:
        outputs: Tensor = self.layer(*[series] * self.times)[0]
        return outputs


class Scaled(nn.Module):
    """A layer that may get a second input, of which Opacus takes the first alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, one: Tensor, other: Tensor | None = None) -> Tensor:
        return (one if other is None else one + other) * self.scale


class OfInputs(nn.Module):
    """Such a layer with one input or two."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.layer, self.times = Scaled(), times

    def forward(self, series: Tensor) -> Tensor:
        outputs: Tensor = self.layer(*[series] * self.times)
        return outputs


class Biased(nn.Module):
    """A bias in front of a norm that removes it: its gradient is rounding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.norm = nn.Linear(1, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, series: Tensor) -> Tensor:
        moved: Tensor = self.norm(series + self.shift(series[..., :1]).mean(-1, keepdim=True))
        return moved


class End(nn.Module):
    """A head or tail: layers, and in a tail a logit for each class."""

    def __init__(self, layer: nn.Module, tail: bool = False) -> None:
        super().__init__()
        self.layer = layer
        self.read = nn.Linear(WIDTH, 2) if tail else None

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.layer(inputs)
        return hidden if self.read is None else self.read(hidden.mean(1))


def client_of(layer: nn.Module, part: str, batch_size: int = TOKENS) -> UShapeClient:
    head = End(layer if part == "head" else nn.Linear(WIDTH, WIDTH))
    tail = End(layer if part == "tail" else nn.Identity(), tail=True)
    data: Any = TensorDataset(SERIES, LABELS)
    return UShapeClient(head, tail, data, batch_size=batch_size, device="cpu", hiding=DPSGD())


@pytest.mark.parametrize("part", ["head", "tail"])
@pytest.mark.parametrize("batch_size", [2, 3, TOKENS])
def test_a_layer_whose_rows_are_tokens_is_refused_for_every_batch_size(
    part: str, batch_size: int
) -> None:
    """With as many examples as tokens, the sum could move by eleven times the bound."""
    with pytest.raises(ValueError, match=rf"{part}\.layer\.linear \(Linear\) .* with 4 rows for 2"):
        client_of(TokensFirst(), part, batch_size).attach(ORDER, None)


@pytest.mark.parametrize("part", ["head", "tail"])
@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (lambda: First(nn.GRU(WIDTH, WIDTH, batch_first=True)), r"compute for {}\.layer\.layer \("),
        (lambda: First(nn.LSTM(WIDTH, WIDTH, batch_first=True)), r"for {}\.layer\.layer \(LSTM\)"),
        (
            lambda: First(nn.MultiheadAttention(WIDTH, 2, batch_first=True), 3),
            r"for {}\.layer\.layer \(MultiheadAttention\)",
        ),
        (
            lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True),
            r"for {}\.layer\.self_attn \(MultiheadAttention\); take another model",
        ),
        (lambda: UsedTwice(1.0), r"for {}\.layer\.linear\.weight do not add up to the batch's"),
        (lambda: UsedTwice(0.0), r"for {}\.layer\.linear\.weight do not add up to the batch's"),
        (lambda: OfInputs(2), r"for {}\.layer\.layer\.scale do not add up to the batch's"),
    ],
    ids=["gru", "lstm", "attention", "encoder", "used twice", "gated", "two inputs"],
)
def test_what_opacus_cannot_or_does_not_wholly_compute_is_named_before_a_round(
    layer: Callable[[], nn.Module], sentence: str, part: str
) -> None:
    """Opacus itself would fail in the first step, or lose a part of the gradient."""
    with pytest.raises(ValueError, match=sentence.format(part)):
        client_of(layer(), part).attach(ORDER, None)


@pytest.mark.parametrize("part", ["head", "tail"])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: OfInputs(1),
        Biased,
        lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.PReLU(), nn.RMSNorm(WIDTH)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
        lambda: nn.Sequential(nn.Conv1d(TOKENS, TOKENS, 3, padding=1), nn.GroupNorm(2, TOKENS)),
        lambda: nn.Linear(WIDTH, WIDTH).requires_grad_(False),
    ],
    ids=["one input", "bias", "norms", "weight norm", "convolution", "frozen"],
)
def test_layers_that_keep_examples_apart_are_tried_and_let_through(
    layer: Callable[[], nn.Module], part: str
) -> None:
    """They are let through without a trial, too, so the test looks whether there is one."""
    tried: list[int] = []
    module = layer()
    module.register_forward_hook(lambda _, inputs, __: tried.append(len(inputs[0])))
    client_of(module, part).attach(ORDER, None)
    assert {2, 3} <= {*tried}


def test_a_batch_of_one_example_has_the_gradient_of_its_example() -> None:
    """DeBERTa's layers that are called once for a batch are right there."""

    class OncePerBatch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, series: Tensor) -> Tensor:
            moved: Tensor = series + self.linear(torch.ones(1, WIDTH))
            return moved

    module, tried = OncePerBatch(), []
    module.register_forward_hook(lambda _, inputs, __: tried.append(len(inputs[0])))
    client_of(module, "head", 1).attach(ORDER, None)
    assert 1 in tried
    assert not {2, 3} & {*tried}
    with pytest.raises(ValueError, match=r"linear \(Linear\) is called with 1 row for 2 examples"):
        client_of(OncePerBatch(), "head", 2).attach(ORDER, None)


@pytest.mark.parametrize("part", ["head", "tail"])
def test_what_changes_a_layers_output_in_place_is_told_with_a_remedy(part: str) -> None:
    """Falcon's layers do."""

    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, series: Tensor) -> Tensor:
            moved: Tensor = self.linear(series)
            moved += series
            return moved

    message = "hooks fail where head or tail changes in place .* or adapters"
    with pytest.raises(UnfitError, match=message) as failed:
        client_of(InPlace(), part).attach(ORDER, None)
    assert "take another model" in logged_reason(0, "attach", failed.value)


@pytest.mark.parametrize("part", ["head", "tail"])
def test_a_layer_that_opacus_does_not_know_is_told_the_server(part: str) -> None:
    class Moved(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.register_buffer("moved_by", torch.ones(WIDTH))

    with pytest.raises(UnfitError, match=rf"for {part}\.layer \(Moved\)") as failed:
        client_of(Moved(), part).attach(ORDER, None)
    assert f"{part}.layer (Moved); take another" in logged_reason(0, "attach", failed.value)


def test_what_fails_with_few_examples_is_refused_and_only_the_log_quotes_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class OfFour(nn.Module):
        def forward(self, series: Tensor) -> Tensor:
            if 1 < len(series) < 4:
                raise ValueError(f"no four patients, the first is {series[0, 0, 0]:.3f}")
            return series

    needed = r"DPSGD tries a step .* head or tail fail at it: ValueError; the log says more$"
    with pytest.raises(ClientError, match=needed) as failed:
        client_of(OfFour(), "head", 4).attach(ORDER, None)
    assert "no four patients" not in logged_reason(0, "attach", failed.value)
    assert "no four patients" in caplog.text


def test_what_cannot_be_tried_is_refused() -> None:
    class Unique(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("there is one of me")

    needed = r"so that its epsilon holds, and head or tail cannot be copied \(copy.deepcopy\)$"
    with pytest.raises(ClientError, match=needed):
        client_of(Unique(WIDTH, WIDTH), "head").attach(ORDER, None)


def test_the_trial_leaves_nothing_behind_and_is_made_once(monkeypatch: Any) -> None:
    client = client_of(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)), "head")
    tried: list[int] = []
    rehearse = DPSGD.rehearse

    def counted(*arguments: Any, **options: Any) -> None:
        tried.append(1)
        rehearse(*arguments, **options)

    monkeypatch.setattr(DPSGD, "rehearse", counted)
    before = {name: each.clone() for name, each in client.segments.state_dict().items()}
    attributes_before = [
        set(vars(each)) for each in (*client.segments.modules(), *client.segments.parameters())
    ]
    drawn = []
    for _ in range(2):
        torch.manual_seed(3), np.random.seed(3), random.seed(3)
        client.attach(ORDER, None)
        drawn.append((torch.rand(1), np.random.rand(), random.random()))
    assert drawn[0] == drawn[1]
    assert tried == [1]
    after = client.segments.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not any(p.grad is not None for p in client.segments.parameters())
    attributes_after = [
        set(vars(each)) for each in (*client.segments.modules(), *client.segments.parameters())
    ]
    assert attributes_after == attributes_before


def test_texts_with_padding_and_tied_weights_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    head, tail = TOY.head(), TOY.tail()
    tail.output.weight = head.words.weight
    client = UShapeClient(head, tail, TOY.texts(0, 8), batch_size=4, device="cpu", hiding=DPSGD())
    tried: list[bool] = []

    def recorded(ends: nn.ModuleDict, inputs: Tensor, mask: Tensor, *, single: bool) -> None:
        try_gradients(ends, inputs, mask, single=single)
        tied = ends.get_parameter("tail.output.weight") is ends.get_parameter("head.words.weight")
        tried.append(tied and not bool(mask.all()))

    monkeypatch.setattr(watched_rows, "try_gradients", recorded)
    client.attach(ORDER, None)
    assert tried == [True]
