"""The upper segment's three updates against gradients computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.events import StepResult
from flwr_splitmix.mixers import Mixed, Source
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.segments.upper import ServerUpdate, TrainedUpper
from flwr_splitmix.testing.toy import Toy, sgd
from tests.server.segments.mixtures import GROUPS, LR, TOY, B, mixture


def learn(update: ServerUpdate, mixed: Mixed) -> tuple[TrainedUpper, StepResult]:
    segment = TrainedUpper(
        TOY.upper(), optimizer=sgd(LR), schedule=constant, server_update=update, device="cpu"
    )
    return segment, segment.learn(mixed, 0.0, 1, seed=0, rng=np.random.default_rng(2))


def by_hand(model: nn.Module, mixed: Mixed, group: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Loss of one group (eq. 3, written out), its gradients at the smashed data and weights."""
    rows = slice(group * B, (group + 1) * B)
    smashed = mixed.smashed[rows].clone().requires_grad_()
    loss = -(mixed.targets[rows] * F.log_softmax(model(smashed), 1)).sum() / B
    first, *others = torch.autograd.grad(loss, [smashed, *model.parameters()])
    return loss.detach(), first, others


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("update", "factor"), [("sum", 1.0), ("mean", 1 / GROUPS)])
def test_a_joint_step_is_on_the_sum_or_the_mean_of_the_groups(
    update: ServerUpdate, factor: float
) -> None:
    mixed, model = mixture(), TOY.upper()
    segment, result = learn(update, mixed)
    parts = [by_hand(model, mixed, group) for group in range(GROUPS)]
    for i, (before, after) in enumerate(
        zip(model.parameters(), segment.module.parameters(), strict=True)
    ):
        gradient = sum((part[2][i] for part in parts), torch.zeros(()))
        close(after, before - LR * factor * gradient)
    # The cut-layer gradient is each group's own, in every mode.
    close(result.gradient, torch.cat([part[1] for part in parts]))
    close(result.loss, torch.stack([part[0] for part in parts]).mean())


def test_sequential_steps_follow_one_another_in_random_order() -> None:
    mixed, model = mixture(), TOY.upper()
    segment, result = learn("sequential", mixed)
    order = np.random.default_rng(2).permutation(GROUPS)
    assert order.tolist() != sorted(order)
    losses, gradients = [], torch.empty_like(mixed.smashed)
    for group in order:
        loss, gradients[group * B : (group + 1) * B], others = by_hand(model, mixed, group)
        losses.append(loss)
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), others, strict=True):
                parameter.sub_(LR * gradient)
    for expected, actual in zip(model.parameters(), segment.module.parameters(), strict=True):
        close(actual, expected)
    close(result.gradient, gradients)
    close(result.loss, torch.stack(losses).mean())


@pytest.mark.parametrize("update", ["sum", "mean", "sequential"])
def test_with_one_group_all_updates_are_one(update: ServerUpdate) -> None:
    mixed = mixture(1)
    segment, result = learn(update, mixed)
    reference, expected = learn("sum", mixed)
    assert torch.equal(result.gradient, expected.gradient)
    for name, tensor in segment.module.state_dict().items():
        assert torch.equal(tensor, reference.module.state_dict()[name])


def test_the_smashed_data_are_not_changed() -> None:
    mixed = mixture()
    before = mixed.smashed.clone()
    learn("sequential", mixed)
    assert torch.equal(mixed.smashed, before)
    assert not mixed.smashed.requires_grad


def test_scoring_counts_hits_and_adds_losses_without_dropout() -> None:
    toy = Toy(dropout=0.9)
    segment = TrainedUpper(toy.upper(), device="cpu")
    smashed, labels = mixture().smashed, torch.arange(GROUPS * B) % 3
    scored = segment.score(smashed, labels)
    logits = segment.module.eval()(smashed).detach()
    log_likelihood = F.log_softmax(logits, 1)[torch.arange(len(labels)), labels].sum()
    assert scored.loss == pytest.approx(-float(log_likelihood), rel=1e-5)
    hits = sum(int(row.argmax()) == int(y) for row, y in zip(logits, labels, strict=True))
    assert scored.right == hits


@pytest.mark.parametrize("update", ["sum", "sequential"])
def test_logits_for_other_classes_are_refused(update: ServerUpdate) -> None:
    segment = TrainedUpper(TOY.upper(), num_classes=4, device="cpu", server_update=update)
    mixed = mixture()
    wider = replace(mixed, targets=torch.cat([mixed.targets, mixed.targets[:, :1]], dim=1))
    with pytest.raises(ValueError, match=r"returns \(\d+, 3\); expected .* num_classes = 4"):
        segment.learn(wider, 0.0, 1, 0, np.random.default_rng(0))


def test_state_restores_weights_and_optimizer() -> None:
    def make() -> TrainedUpper:
        return TrainedUpper(TOY.upper(), device="cpu")  # AdamW

    first, second, mixed = make(), make(), mixture()
    first.learn(mixed, 0.0, 2, 0, np.random.default_rng(0))
    tensors, meta = first.state()
    second.restore({name: t.clone() for name, t in tensors.items()}, meta)
    for segment in (first, second):
        segment.learn(mixed, 1.0, 2, 1, np.random.default_rng(1))
    for name, tensor in first.state()[0].items():
        assert torch.equal(tensor, second.state()[0][name]), name


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"server_update": "joint"}, "server_update is 'joint'; it must be one of sequential, sum"),
        ({"num_classes": 1}, "num_classes is 1; .* at least 2: for two classes it returns two"),
        ({"device": None}, "device None is not available here; it must be 'auto', 'cpu'"),
        ({"device": "tpu"}, "device 'tpu' is not available here; it must be 'auto', 'cpu'"),
        ({"precision": "float8"}, "precision is 'float8'; it must be one of auto, float32"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainedUpper(TOY.upper(), **{"device": "cpu", **options})


def test_numpys_integers_are_numbers_of_classes() -> None:
    classes: Any = np.arange(3).max() + 1
    assert TrainedUpper(TOY.upper(), num_classes=classes, device="cpu").num_classes == 3


def test_the_number_of_classes_must_be_known() -> None:
    with pytest.raises(ValueError, match="has no num_classes; pass num_classes="):
        TrainedUpper(nn.Linear(2, 3), device="cpu")


class Steep(nn.Module):
    """An upper segment with a derivative that is infinite at 0, or very large."""

    num_classes = 3

    def __init__(self, bend: Any) -> None:
        super().__init__()
        self.own = nn.Linear(18, 3, bias=False)
        self.bend = bend

    def forward(self, smashed: Tensor) -> Tensor:
        """Map, then bend."""
        out: Tensor = self.bend(self.own(smashed.flatten(1)))
        return out


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("update", ["sequential", "sum", "mean"])
@pytest.mark.parametrize(
    ("bend", "at"),
    [
        (lambda z: z.abs().sqrt(), 0.0),
        (lambda z: torch.where(z.abs() < 1e-9, 1e30 * z, z), 1e-10),
    ],
    ids=["infinite", "square overflows"],
)
def test_one_group_whose_gradients_overflow_ruins_neither_weights_nor_adam(
    bend: Any, at: float, update: ServerUpdate, waits: bool
) -> None:
    segment = TrainedUpper(Steep(bend), device="cpu", server_update=update)
    assert segment.waits
    segment.waits = waits
    smashed = torch.randn(GROUPS * B, 6, 3, generator=torch.Generator().manual_seed(0))
    smashed[B : 2 * B] = at
    targets = torch.eye(3)[torch.arange(GROUPS * B) % 3]
    mixed = Mixed(smashed, targets, tuple(Source(0, (), 1.0) for _ in range(GROUPS)))
    before = segment.module.state_dict()["own.weight"].clone()
    result = segment.learn(mixed, 0.5, 1, seed=0, rng=np.random.default_rng(2))
    assert result.gradient.isfinite().all()
    assert all(t.isfinite().all() for t in segment.state()[0].values())
    mixed = Mixed(smashed[:B], targets[:B], mixed.sources[:1])
    segment.learn(mixed, 0.5, 1, seed=0, rng=np.random.default_rng(2))
    assert not torch.equal(segment.module.state_dict()["own.weight"], before)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("update", ["sequential", "sum"])
def test_a_gradient_that_clients_would_refuse_is_not_sent(
    update: ServerUpdate, waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients with a max-epsilon would leave the round, one group after the other."""
    segment = TrainedUpper(TOY.upper(), device="cpu", server_update=update)
    segment.waits = waits
    mixed = mixture()
    mixed.targets[B : 2 * B] *= -1e9
    result = segment.learn(mixed, 0.5, 1, seed=0, rng=np.random.default_rng(2))
    gradients = result.gradient.view(GROUPS, B, 6, 3)
    assert (gradients[1] == 0).all()
    assert all(bool(gradients[group].abs().amax() > 1e-6) for group in (0, 2))
    assert result.without_gradient == ((1,) if waits else ())
    segment.warn_of_skipped_steps(7)
    assert "round 7: 1 gradient of the smashed data had numbers beyond 1e+06" in caplog.text
    caplog.clear()
    segment.warn_of_skipped_steps(8)
    assert not caplog.text


@pytest.mark.parametrize("update", ["sequential", "mean"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_of_many_groups_is_exact_in_16_bits(
    update: ServerUpdate, dtype: torch.dtype
) -> None:
    """In 16 bits the sum of a thousand losses stops growing: 0.13 instead of 0.47."""
    groups, model = 1000, TOY.upper().to(dtype)
    smashed = torch.ones(groups, 6, 3, dtype=dtype)
    targets = torch.tensor([[1.0, 0.0, 0.0]], dtype=dtype).expand(groups, 3)
    segment = TrainedUpper(model, optimizer=sgd(0.0), server_update=update, device="cpu")
    mixed = Mixed(smashed, targets, tuple(Source(0, (), 1.0) for _ in range(groups)))
    result = segment.learn(mixed, 0.0, 1, seed=0, rng=np.random.default_rng(2))
    expected = -F.log_softmax(model(smashed[:1]).float(), 1)[0, 0]
    assert result.gradient.dtype == dtype
    torch.testing.assert_close(result.loss, expected, rtol=1e-3, atol=0.0)
