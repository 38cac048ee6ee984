"""A loss of one's own: it trains the segments, in every mode and behind every mixer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix import adamw
from flwr_splitmix.labels import TargetLoss
from flwr_splitmix.mixers import (
    Mixed,
    Mixer,
    NoMixing,
    Plan,
    Shuffled,
    SmashedShape,
    Source,
    Upload,
)
from flwr_splitmix.mixers.checked_mixer import gradients_of
from flwr_splitmix.server.segments.upper import ServerUpdate, TrainedUpper
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.strategies import PSL, CutMixSL, ShuffledCutMixSL, ShuffledPSL, SplitStrategy
from flwr_splitmix.testing.toy import Examples, Toy

TOY = Toy(clients=4, dropout=0.0, batch_norm=False)
WEIGHTS = torch.tensor([5.0, 1.0, 0.2])


def by_hand(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy (b,) with the classes' weights."""
    return -(WEIGHTS.to(targets) * targets * F.log_softmax(logits, 1)).sum(1)


def losses_of(strategy: SplitStrategy, rounds: int = 2) -> list[float]:
    strategy.fit(TOY.make_clients(adamw(0.02)), rounds)
    return [row["loss"] for row in strategy.rows]


@pytest.mark.parametrize("kind", [PSL, CutMixSL])
def test_torchs_weighted_loss_trains_as_one_written_out(kind: type[SplitStrategy]) -> None:
    options: dict[str, Any] = {"device": "cpu", "steps_per_round": 5, "seed": 1}
    theirs = nn.CrossEntropyLoss(WEIGHTS.double(), reduction="none")
    weighted = losses_of(kind(TOY.upper(), loss=theirs, **options))
    assert weighted == pytest.approx(losses_of(kind(TOY.upper(), loss=by_hand, **options)))
    plain = losses_of(kind(TOY.upper(), **options))
    assert plain != pytest.approx(weighted, rel=0.05)
    unweighted = nn.CrossEntropyLoss(reduction="none")
    assert plain == pytest.approx(losses_of(kind(TOY.upper(), loss=unweighted, **options)))


def weighted(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy (b,) whose mean is torch's with classes' weights, as docs/own-app.md has it."""
    losses = F.cross_entropy(logits, targets, WEIGHTS.to(logits), reduction="none")
    return losses * len(targets) / (targets @ WEIGHTS.to(targets)).sum()


class Auxiliary(nn.Module):
    """An upper segment that keeps the logits of a second one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = TOY.upper(), nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
        self.num_classes, self.aux = 3, torch.zeros(())

    def forward(self, smashed: Tensor) -> Tensor:
        self.aux = self.second(smashed)
        logits: Tensor = self.first(smashed)
        return logits


def each(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none")


@pytest.mark.parametrize("auxiliary", [False, True])
def test_documented_losses_train_as_the_whole_model_does(auxiliary: bool) -> None:
    """The server takes the plain mean; torch's weighted loss divides by the weights' sum."""
    torch.manual_seed(0)
    smashed = torch.randn(8, TOY.patches, TOY.width, dtype=torch.float64)
    classes = torch.tensor([0, 0, 1, 2, 0, 2, 2, 1])
    upper: Any = Auxiliary().double() if auxiliary else TOY.upper()
    upper(smashed)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return each(logits, targets) + 0.4 * each(upper.aux, targets)

    segment = TrainedUpper(upper, loss=loss if auxiliary else weighted, device="cpu")
    mixed = Mixed(smashed, F.one_hot(classes, 3).double(), (Source(0, (), 1.0),))
    inputs = smashed.clone().requires_grad_()
    logits = upper(inputs)
    if auxiliary:
        expected_loss = F.cross_entropy(logits, classes) + 0.4 * F.cross_entropy(upper.aux, classes)
    else:
        expected_loss = nn.CrossEntropyLoss(WEIGHTS.double())(logits, classes)
    (expected,) = torch.autograd.grad(expected_loss, inputs)
    result = segment.learn(mixed, 0.0, 1, 0, np.random.default_rng(0))
    torch.testing.assert_close(result.loss, expected_loss.detach())
    torch.testing.assert_close(result.gradient, expected)


def test_gradients_are_the_loss_own_ones_whole_and_in_parts() -> None:
    source = torch.Generator().manual_seed(0)
    smashed = torch.randn(8, TOY.patches, TOY.width, dtype=torch.float64, generator=source)
    targets = torch.rand(8, TOY.classes, dtype=torch.float64, generator=source)
    targets /= targets.sum(1, keepdim=True)
    sources = (Source(0, (), 1.0), Source(1, (), 1.0))
    segment = TrainedUpper(TOY.upper(), loss=by_hand, server_update="sum", device="cpu")
    parts = []
    for part in range(2):  # two samples of each group of four
        rows = [2 * part, 2 * part + 1, 4 + 2 * part, 5 + 2 * part]
        mixed = Mixed(smashed[rows], targets[rows], sources)
        parts.append((rows, segment.learn_part(mixed, 4, 0, first=part == 0)))
    whole = segment.learn(Mixed(smashed, targets, sources), 0.0, 1, 0, np.random.default_rng(0))

    inputs = smashed.clone().requires_grad_()
    (expected,) = torch.autograd.grad(by_hand(TOY.upper()(inputs), targets).sum() / 4, inputs)
    torch.testing.assert_close(whole.gradient, expected)
    for rows, result in parts:
        torch.testing.assert_close(result.gradient, expected[rows])
    torch.testing.assert_close(whole.loss, sum(result.loss for _, result in parts))


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({}, 1),
        ({"pace": Pace(group_order="arrival")}, 1),
        ({"server_update": "sum"}, 2),
        ({"server_update": "mean"}, 2),
    ],
    ids=str,
)
def test_a_loss_sees_all_groups_in_a_joint_update_and_one_in_a_sequential_one(
    options: dict[str, Any], groups: int
) -> None:
    sizes: set[int] = set()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        sizes.add(len(logits))
        return by_hand(logits, targets)

    losses_of(CutMixSL(TOY.upper(), k=2, loss=loss, device="cpu", **options))
    assert sizes == {groups * TOY.batch}


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss(), r"loss returns \(\); expected losses \(\d+,\), .*'none'"),
        (nn.BCEWithLogitsLoss(reduction="none"), r"loss returns \(\d+, 3\); .* mean over classes"),
        (lambda logits, targets: logits - targets, r"loss returns \(\d+, 3\)"),
        (lambda logits, targets: 1.0, "loss returns float"),
    ],
)
def test_what_is_no_loss_of_each_example_is_refused(loss: TargetLoss, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        losses_of(PSL(TOY.upper(), loss=loss, device="cpu"))


@pytest.mark.parametrize(
    "loss",
    [
        nn.NLLLoss(reduction="none"),
        nn.MultiMarginLoss(reduction="none"),
        nn.CrossEntropyLoss(WEIGHTS[:2].double(), reduction="none"),
        lambda logits: logits.sum(1),
    ],
)
def test_a_loss_of_something_else_than_rows_of_shares_is_refused(loss: TargetLoss) -> None:
    message = (
        r"^loss \S+ cannot be computed from logits \(4, 3\) and targets \(4, 3\), both float64 .*"
    )
    with pytest.raises(
        ValueError, match=message + r"expected nn\.CrossEntropyLoss\(reduction='none'"
    ):
        losses_of(PSL(TOY.upper(), loss=loss, device="cpu"))


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(reduction="none"), nn.MultiLabelSoftMarginLoss(reduction="none")],
)
def test_torchs_losses_that_the_message_and_the_docs_name_train(loss: nn.Module) -> None:
    first, *_, last = losses_of(PSL(TOY.upper(), loss=loss, device="cpu"), rounds=4)
    assert last < first


@pytest.mark.parametrize(
    ("loss", "message"),
    [("ce", "loss is 'ce'; expected"), (nn.NLLLoss, "loss is the class NLLLoss; expected")],
)
def test_what_can_be_no_loss_is_refused_at_once(loss: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        PSL(TOY.upper(), loss=loss, device="cpu")


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 12),
        ({"server_update": "sum"}, 3),
        ({"server_update": "sum", "micro_batches": 2}, 3),
        ({"pace": Pace(group_order="arrival")}, 12),
    ],
    ids=str,
)
def test_steps_of_a_nan_loss_are_left_out_on_both_sides_and_told_once_a_round(
    options: dict[str, Any], steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    def nan(logits: Tensor, targets: Tensor) -> Tensor:
        return by_hand(logits, targets) * float("nan")

    strategy = PSL(TOY.upper(), loss=nan, device="cpu", steps_per_round=3, **options)
    clients = TOY.make_clients(adamw(0.02))
    segments = [strategy.upper.module, *(client.segment for client in clients)]
    before = [weight.detach().clone() for segment in segments for weight in segment.parameters()]
    with caplog.at_level("WARNING"):
        strategy.fit(clients, 2)
    warnings = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert [words.partition(":")[0] for words in warnings] == ["round 1", "round 2"]
    assert f"left out {steps} steps, as gradients in it were NaN or too large" in warnings[0]
    after = [weight for segment in segments for weight in segment.parameters()]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


class FirstIsAlone(Toy):
    """A toy whose first client alone has class 0; the others have class 1."""

    def data(self, client: int) -> Examples:
        examples = super().data(client)
        return Examples(examples.inputs, torch.full_like(examples.labels, min(client, 1)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"server_update": "mean"},
        {"server_update": "sum", "micro_batches": 2},
        {"pace": Pace(group_order="arrival")},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("kind", "grouping"),
    [(PSL, {}), (ShuffledPSL, {}), (CutMixSL, {"k": 2}), (ShuffledCutMixSL, {"k": 2})],
)
def test_all_clients_but_those_of_the_group_whose_loss_is_nan_learn(
    kind: type[SplitStrategy], grouping: dict[str, Any], options: dict[str, Any]
) -> None:
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return by_hand(logits, targets) * torch.where(targets[:, 0] > 0, float("nan"), 1.0)

    toy = FirstIsAlone(clients=4, dropout=0.0, batch_norm=False)
    strategy = kind(toy.upper(), loss=loss, device="cpu", steps_per_round=1, **grouping, **options)
    clients = toy.make_clients(adamw(0.02))
    strategy.fit(clients, 1)
    before = next(toy.lower().parameters())
    still = [torch.equal(next(client.segment.parameters()), before) for client in clients]
    assert still[0]
    assert sum(still) == grouping.get("k", 1)


@pytest.mark.parametrize("mixer", [NoMixing(), Shuffled(NoMixing())], ids=str)
@pytest.mark.parametrize("server_update", ["sequential", "sum", "mean"])
@pytest.mark.parametrize("other", [0.0, 1.0])
def test_only_the_group_whose_gradient_is_nan_gets_none(
    other: float, server_update: ServerUpdate, mixer: Mixer
) -> None:
    """A gradient of zeros is one, and is delivered."""
    shape = SmashedShape(4, TOY.patches, TOY.width, classes=TOY.classes)
    plan = mixer.plan([0, 1], shape, np.random.default_rng(0))
    uploads = {
        client: Upload([torch.randn(shape.size, dtype=torch.float64)], torch.full((4,), client))
        for client in (0, 1)
    }
    mixed = mixer.merge(uploads, plan, num_classes=TOY.classes)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return by_hand(logits, targets) * torch.where(targets[:, 1] == 1, float("nan"), other)

    segment = TrainedUpper(TOY.upper(), loss=loss, server_update=server_update, device="cpu")
    result = segment.learn(mixed, 0.0, 1, 0, np.random.default_rng(0))
    gradients = gradients_of(mixer, result.gradient, mixed, plan, result.without_gradient)
    assert gradients.keys() == {0}
    (gradient,) = gradients[0]
    assert gradient is not None
    assert bool(gradient.any()) == bool(other)


def test_a_client_of_several_groups_lacks_only_the_gradients_of_those_that_are_lost() -> None:
    shape = SmashedShape(4, TOY.patches, TOY.width)
    alone = NoMixing().plan([0, 1], shape, np.random.default_rng(0))
    plan = Plan(shape, alone.passes * 2)
    sources = tuple(
        Source(index, group.members, 1.0)
        for index, groups in enumerate(plan.passes)
        for group in groups
    )
    smashed = torch.randn(16, TOY.patches, TOY.width)
    mixed = Mixed(smashed, torch.zeros(16, TOY.classes), sources)
    gradients = gradients_of(NoMixing(), smashed, mixed, plan, lost=[0, 1, 3])
    assert gradients.keys() == {0}
    first, second = gradients[0]
    assert first is None
    assert second is not None
    torch.testing.assert_close(second, smashed[8:12])


def test_a_loss_that_detaches_the_logits_is_named() -> None:
    def detached(logits: Tensor, targets: Tensor) -> Tensor:
        return by_hand(logits.detach(), targets)

    strategy = PSL(TOY.upper(), loss=detached, device="cpu", steps_per_round=1)
    with pytest.raises(ValueError, match="the loss has no gradient; it must compute it from the l"):
        strategy.fit(TOY.make_clients(adamw(0.02)), 1)


class Tempered(nn.Module):
    """A cross-entropy of logits divided by a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits / self.temperature, targets, reduction="none")


@pytest.mark.parametrize("shared", [False, True])
def test_a_weight_of_the_loss_is_trained_if_the_upper_segment_has_it_too(shared: bool) -> None:
    loss, upper = Tempered(), TOY.upper()
    if shared:
        upper.temperature = loss.temperature
    losses_of(PSL(upper, loss=loss, optimizer=adamw(0.02), device="cpu", steps_per_round=2), 1)
    assert (loss.temperature.item() == 2.0) is not shared
