"""What makes a batch in parts another one: found before the first part, without a trace."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix import adamw, split_vision_model
from flwr_splitmix.labels import TargetLoss
from flwr_splitmix.mixers import Mixed, Source
from flwr_splitmix.server.segments.part_trial import check_in_parts
from flwr_splitmix.server.segments.upper import TrainedUpper
from flwr_splitmix.strategies import PSL, CutMixSFL
from flwr_splitmix.testing.agreement import check_same_tensors
from flwr_splitmix.testing.toy import Toy

PATCHES, WIDTH, CLASSES = 6, 4, 3
TOY = Toy(clients=2, dropout=0.0, batch_norm=False)
SAMPLES = 4
"""Samples of each of two groups in a part."""


def part(samples: int = SAMPLES, shape: tuple[int, int] = (PATCHES, WIDTH)) -> Mixed:
    source = torch.Generator().manual_seed(0)
    smashed = torch.randn(2 * samples, *shape, generator=source)
    targets = F.one_hot(torch.arange(2 * samples) % CLASSES, CLASSES).float()
    return Mixed(smashed, targets, (Source(0, (), 1.0), Source(0, (), 1.0)))


def learn(
    module: nn.Module, loss: TargetLoss | None = None, mixed: Mixed | None = None
) -> TrainedUpper:
    """Learn from the first of two parts of a batch."""
    mixed = part() if mixed is None else mixed
    segment = TrainedUpper(
        module, num_classes=CLASSES, loss=loss, server_update="sum", device="cpu"
    )
    segment.learn_part(mixed, len(mixed.smashed), seed=0, first=True)
    return segment


def head() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(PATCHES * WIDTH, CLASSES))


class Layer(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, smashed: Tensor) -> Tensor:
        return self.function(smashed)


def standardised(smashed: Tensor) -> Tensor:
    return (smashed - smashed.mean(0)) / (smashed.std(0) + 1e-5)


class Gated(nn.Module):
    """A branch that a gate hides until training opens it."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.gate = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, smashed: Tensor) -> Tensor:
        hidden: Tensor = smashed + self.gate * self.branch(smashed)
        return hidden


class DropPath(nn.Module):
    """Stochastic depth, which is none of torch's layers."""

    def forward(self, smashed: Tensor) -> Tensor:
        mask = torch.rand(len(smashed), 1, 1) < 0.5
        return smashed + smashed.tanh() * mask


def zero_head() -> nn.Module:
    linear = nn.Linear(PATCHES * WIDTH, CLASSES)
    nn.init.zeros_(linear.weight)
    return nn.Sequential(Layer(standardised), nn.Flatten(), linear)


MIXING: dict[str, Callable[[], nn.Module]] = {
    "standardised": lambda: nn.Sequential(Layer(standardised), head()),
    "deviation": lambda: nn.Sequential(Layer(lambda z: z * z.std(0).mean()), head()),
    "size": lambda: nn.Sequential(Layer(lambda z: z / len(z)), head()),
    "pairs": lambda: nn.Sequential(Layer(lambda z: z + z.roll(1, 0)), head()),
    "attention": lambda: nn.Sequential(nn.TransformerEncoderLayer(WIDTH, 2, 8), head()),
    "gate": lambda: nn.Sequential(Gated(Layer(standardised)), head()),
    "zero head": zero_head,
    "random depth": lambda: nn.Sequential(DropPath(), Layer(standardised), head()),
    "half precision": lambda: nn.Sequential(Layer(standardised), head()).bfloat16(),
}


def mixing_and_counted(passed: list[int]) -> nn.Module:
    """Return a module that mixes examples and adds to `passed` how many it was called with."""

    def counted(smashed: Tensor) -> Tensor:
        passed.append(len(smashed))
        return standardised(smashed)

    return nn.Sequential(Layer(counted), head())


@pytest.mark.parametrize("name", MIXING)
def test_an_upper_segment_that_mixes_examples_is_refused(name: str) -> None:
    mixed = part()
    if name == "half precision":
        mixed = Mixed(mixed.smashed.bfloat16(), mixed.targets, mixed.sources)
    message = (
        r"^the upper segment \(Sequential\) computes logits of .*: set micro_batches to 1 .*key m"
    )
    with pytest.raises(ValueError, match=message):
        learn(MIXING[name](), mixed=mixed)


def test_mixed_precision_does_not_hide_it() -> None:
    """It is the default on a GPU; numbers of 16 bits differ by as little as parts do."""
    segment = TrainedUpper(
        MIXING["deviation"](), num_classes=CLASSES, server_update="sum", device="cpu",
        precision="bfloat16",
    )  # fmt: skip
    mixed = part(64)
    with pytest.raises(ValueError, match="the upper segment"):
        segment.learn_part(mixed, len(mixed.smashed), seed=0, first=True)


def test_it_is_refused_each_time_it_is_to_learn() -> None:
    """Another `fit` of the same strategy does not train it without a word."""
    segment = TrainedUpper(
        MIXING["standardised"](), num_classes=CLASSES, server_update="sum", device="cpu"
    )
    for _ in range(2):
        with pytest.raises(ValueError, match="set micro_batches to 1"):
            segment.learn_part(part(), 2 * SAMPLES, seed=0, first=True)


@pytest.mark.parametrize("samples", [1, 3])
def test_a_part_of_few_examples_shows_it_too(samples: int) -> None:
    with pytest.raises(ValueError, match="the upper segment"):
        learn(MIXING["standardised"](), mixed=part(samples))


class Counting(nn.Module):
    """Counts its calls, in a buffer and elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.number = 0

    def forward(self, smashed: Tensor) -> Tensor:
        self.calls += 1
        self.number += 1
        return smashed * self.number


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "linear": head,
    "transformer with dropout": lambda: nn.Sequential(
        nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True), head()
    ),
    "random depth": lambda: nn.Sequential(DropPath(), DropPath(), head()),
    "dropout as a function": lambda: nn.Sequential(Layer(F.dropout), head()),
    "recurrent": lambda: nn.Sequential(
        nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.3), Layer(lambda out: out[0]), head()
    ),
    "spectral norm": lambda: nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.GroupNorm(1, 6), head()
    ),
    "counting": lambda: nn.Sequential(Counting(), head()),
}


@pytest.mark.parametrize("name", PLAIN)
def test_an_upper_segment_with_examples_apart_learns(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    learn(PLAIN[name](), mixed=part(40))
    moving = name in ("spectral norm", "counting")
    assert ["changes buffers" in message for message in caplog.messages] == [True] * moving


def test_rounding_of_logits_that_are_near_0_by_chance_is_no_difference() -> None:
    """Under noise hidden units are saturated in all examples, and logits are near 0."""
    torch.manual_seed(0)
    upper = TOY.upper()
    for _ in range(150):
        smashed = 2 * torch.randn(2, TOY.geometry.tokens, TOY.width, dtype=torch.float64)
        check_in_parts(
            upper,
            None,
            smashed,
            torch.zeros(2, CLASSES),
            device=torch.device("cpu"),
            dtype=torch.float64,
        )


def test_one_that_draws_as_many_numbers_as_examples_make_it_cannot_be_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Others' draws are other ones after those of another example."""
    learn(nn.Sequential(nn.RReLU(), head()), mixed=part(40))
    (warned,) = caplog.messages
    assert warned.endswith("how many random numbers it draws depends on the examples")


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "lenet5", "mixer_s32_224"])
def test_the_packages_models_learn(model: str, caplog: pytest.LogCaptureFixture) -> None:
    _, upper = split_vision_model(model, num_classes=CLASSES, seed=0)
    shape = (upper.geometry.prefix + upper.geometry.patches, upper.geometry.width)
    learn(upper, mixed=part(2, shape))
    assert caplog.records == []


def contrastive(logits: Tensor, targets: Tensor) -> Tensor:
    """Supervised contrastive loss (b,)."""
    rows = F.normalize(logits, dim=1)
    likeness = (2 * rows @ rows.T).masked_fill(torch.eye(len(rows), dtype=torch.bool), -30.0)
    return -(F.log_softmax(likeness, 1) * (targets @ targets.T)).sum(1) / len(rows)


def hardest(logits: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(logits, targets, reduction="none")
    return losses * (losses >= losses.median())


def balanced(logits: Tensor, targets: Tensor) -> Tensor:
    shares = targets.mean(0).clamp(min=0.1)
    return F.cross_entropy(logits, targets / shares, reduction="none")


def shared_out(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none") / len(logits)


def smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    noise = torch.rand_like(targets)
    return F.cross_entropy(logits, targets + 0.1 * noise, reduction="none")


@pytest.mark.parametrize("loss", [contrastive, hardest, balanced, shared_out])
def test_a_loss_that_compares_examples_is_refused(loss: TargetLoss) -> None:
    with pytest.raises(ValueError, match=rf"^loss {loss.__name__} computes losses .*: set micro_b"):
        learn(head(), loss)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(torch.tensor([5.0, 1.0, 0.2]), reduction="none", label_smoothing=0.1),
        nn.MultiLabelSoftMarginLoss(reduction="none"),
        smoothed,
        lambda logits, targets: contrastive(logits.detach(), targets) * 0 + logits.sum(1),
    ],
)
def test_a_loss_of_each_example_alone_learns(
    loss: TargetLoss, caplog: pytest.LogCaptureFixture
) -> None:
    learn(head(), loss)
    assert caplog.records == []


def test_what_says_that_it_may_be_cut_is_not_tried() -> None:
    """Passes are counted, as a trial that finds nothing leaves no other trace."""
    passed: list[int] = []
    counted: list[int] = []
    module = mixing_and_counted(passed)
    module.across_batch = False  # type: ignore[assignment]

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        counted.append(len(logits))
        return contrastive(logits, targets)

    loss.across_batch = False  # type: ignore[attr-defined]
    learn(module, loss)
    assert passed == counted == [2 * SAMPLES]


@pytest.mark.parametrize("micro_batches", [2, "auto"])
def test_a_loss_that_says_that_it_needs_a_whole_batch_is_refused_at_once(
    micro_batches: Any,
) -> None:
    class Contrastive(nn.Module):
        across_batch = True

        def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
            return contrastive(logits, targets)

    options: dict[str, Any] = {"num_classes": CLASSES, "server_update": "sum", "device": "cpu"}
    message = (
        f"micro_batches is {micro_batches!r}, but loss Contrastive needs a whole batch; "
        ".*micro_batches 1"
    )
    with pytest.raises(ValueError, match=message):
        PSL(head(), loss=Contrastive(), micro_batches=micro_batches, **options)
    PSL(head(), loss=Contrastive(), micro_batches=1, **options)


def test_a_trial_that_cannot_tell_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Fixed(nn.Module):
        def forward(self, smashed: Tensor) -> Tensor:
            return smashed.view(2 * SAMPLES, PATCHES, WIDTH)

    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        learn(nn.Sequential(Fixed(), head()))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(
        "the trial of whether Sequential mixes the examples of a batch is incom"
    )


def test_whole_batches_are_not_tried() -> None:
    """Passes are counted, as a trial that finds nothing leaves no other trace."""
    passed: list[int] = []
    segment = TrainedUpper(
        mixing_and_counted(passed), num_classes=CLASSES, loss=contrastive, server_update="sum",
        device="cpu",
    )  # fmt: skip
    segment.learn_part(part(), SAMPLES, seed=0, first=True)
    assert passed == [2 * SAMPLES]


def test_a_trial_costs_no_more_than_a_pass_of_the_batch_and_is_made_once() -> None:
    passed: list[int] = []

    def counted(smashed: Tensor) -> Tensor:
        passed.append(len(smashed))
        return F.dropout(smashed, 0.2)

    mixed = part(40)
    segment = learn(nn.Sequential(Layer(counted), head()), mixed=mixed)
    assert 0 < sum(passed) - len(mixed.smashed) <= 2 * len(mixed.smashed)
    before = len(passed)
    segment.learn_part(mixed, len(mixed.smashed), seed=0, first=True)
    assert len(passed) == before + 1


def test_a_trial_leaves_generators_as_they_were() -> None:
    def noisy(logits: Tensor, targets: Tensor) -> Tensor:
        noise = torch.rand(len(logits)) * random.random() * float(np.random.rand())
        return F.cross_entropy(logits, targets, reduction="none") * (1 + noise)

    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())

    module = PLAIN["random depth"]()
    before = states()
    learn(module, noisy)
    assert states() == before


@pytest.mark.parametrize("kind", [PSL, CutMixSFL])
def test_a_run_with_a_trial_is_the_run_without_it_bit_for_bit(kind: Any) -> None:
    toy = Toy(clients=4, batch_norm=False)  # with dropout
    results = []
    for tried in (True, False):
        module = nn.Sequential(Counting(), toy.upper()).double()
        if not tried:
            module.across_batch = False  # type: ignore[assignment]
        loss = nn.CrossEntropyLoss(reduction="none")
        strategy = kind(
            module, num_classes=toy.classes, loss=loss, server_update="mean", micro_batches=2,
            steps_per_round=3, seed=3, device="cpu",
        )  # fmt: skip
        clients = toy.make_clients(adamw(0.02))
        strategy.fit(clients, 2)
        theirs = {f"{i}.{k}": t for i, c in enumerate(clients) for k, t in c.weights().items()}
        results.append((strategy.rows, {**module.state_dict(), **theirs}))
    (rows, tensors), (rows_without, without) = results
    assert [row["loss"] for row in rows] == [row["loss"] for row in rows_without]
    check_same_tensors("a run", tensors, without)
