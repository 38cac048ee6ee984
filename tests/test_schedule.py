"""Learning rates follow the global round, the same after a restart."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from timm.optim.lookahead import Lookahead
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, StepLR
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.links import LinkError
from flwr_splitmix.optimizer_state import pack_optimizer, unpack_optimizer
from flwr_splitmix.optimizers import OptimizerFactory, ScheduledOptimizer, adamw
from flwr_splitmix.schedule import WarmupCosine, constant
from flwr_splitmix.strategies import PSL


def test_the_papers_schedule() -> None:
    """5 warm-up epochs of 600: from 1e-6 to 1e-3 and down to 1e-5, for a rate of 1e-3."""
    schedule = WarmupCosine(warmup=5.0)
    rate = {p: 1e-3 * schedule(p, 600) for p in (0.0, 2.5, 5.0, 302.5, 600.0)}
    assert rate[0.0] == pytest.approx(1e-6)
    assert rate[2.5] == pytest.approx((1e-6 + 1e-3) / 2)
    assert rate[5.0] == pytest.approx(1e-3)
    assert rate[302.5] == pytest.approx((1e-3 + 1e-5) / 2)  # the middle of the cosine
    assert rate[600.0] == pytest.approx(1e-5)


def test_what_makes_an_adamw_can_be_pickled() -> None:
    """A local function could not be, nor any client or strategy with it."""
    weights = [nn.Parameter(torch.zeros(2))]
    for factory in (
        adamw(0.1, 0.2, (0.5, 0.6)),
        pickle.loads(pickle.dumps(adamw(0.1, 0.2, (0.5, 0.6)))),
    ):
        options = factory(weights).param_groups[0]
        assert (options["lr"], options["weight_decay"], options["betas"]) == (0.1, 0.2, (0.5, 0.6))


def test_it_is_a_cosine() -> None:
    schedule = WarmupCosine(final_factor=0.0)
    for progress in (0.0, 1.0, 2.5, 4.0):
        assert schedule(progress, 4) == pytest.approx((1 + math.cos(math.pi * progress / 4)) / 2)


def test_it_rises_and_then_falls_without_a_jump() -> None:
    schedule = WarmupCosine(warmup=2.0)
    values = [schedule(p / 100, 10) for p in range(1001)]
    assert values[:200] == sorted(values[:200])
    assert values[200:] == sorted(values[200:], reverse=True)
    assert max(abs(a - b) for a, b in pairwise(values)) < 0.011


def test_it_stays_at_its_end_and_survives_a_warm_up_longer_than_the_run() -> None:
    assert WarmupCosine()(7.0, 5) == WarmupCosine()(5.0, 5) == pytest.approx(0.01)
    short = WarmupCosine(warmup=5.0)
    assert 0 < short(3.0, 3) < 1


def test_a_negative_warm_up_is_refused() -> None:
    with pytest.raises(ValueError, match=r"warmup is -1.0 rounds; it must be at least 0"):
        WarmupCosine(warmup=-1.0)


def rate(optimizer: ScheduledOptimizer) -> float:
    assert optimizer.optimizer is not None
    return float(optimizer.optimizer.param_groups[0]["lr"])


def test_the_rate_is_that_of_the_progress_not_of_the_number_of_steps() -> None:
    module = nn.Linear(2, 2)
    optimizer = ScheduledOptimizer(module, adamw(0.1), WarmupCosine(final_factor=0.0))
    for progress, expected in ((1.0, 0.05), (1.0, 0.05), (0.0, 0.1), (2.0, 0.0)):
        optimizer.step(progress, 2)
        assert rate(optimizer) == pytest.approx(expected)


def test_a_restored_optimizer_keeps_its_base_rate() -> None:
    """The rate that was saved is a scheduled one; scheduling it again would shrink it twice."""
    schedule = WarmupCosine(final_factor=0.0)
    first = ScheduledOptimizer(nn.Linear(2, 2), adamw(0.1), schedule)
    second = ScheduledOptimizer(nn.Linear(2, 2), adamw(0.1), schedule)
    first.step(1.0, 2)
    assert first.optimizer is not None
    assert second.optimizer is not None
    unpack_optimizer(second.optimizer, *pack_optimizer(first.optimizer))
    second.step(0.0, 2)
    assert rate(second) == pytest.approx(0.1)


def test_adamw_has_the_decided_defaults() -> None:
    (group,) = adamw()([nn.Parameter(torch.zeros(1))]).param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (1e-3, 0.05, (0.9, 0.999))


def test_frozen_weights_have_no_optimizer() -> None:
    module = nn.Linear(2, 2).requires_grad_(False)
    optimizer = ScheduledOptimizer(module, adamw(), constant)
    assert optimizer.optimizer is None
    optimizer.zero_grad()
    optimizer.step(0.0, 1)


class Sharpness(torch.optim.SGD):
    """An optimizer that must run the model again, as SAM does."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        """Take a step."""
        return super().step(closure)


class Halves(torch.optim.Optimizer):
    """Two optimizers behind one."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        first, *others = parameters
        super().__init__([first, *others], {"lr": 0.1})
        self.halves = [torch.optim.Adam([first]), torch.optim.SGD(others, lr=0.1)]

    def step(self) -> None:  # type: ignore[override]
        """Take a step of both."""
        for half in self.halves:
            half.step()


class Slow(torch.optim.Optimizer):
    """An optimizer that steps with another one, whose groups and state are its own."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.inner = torch.optim.SGD(parameters, lr=1.0, momentum=0.5)
        super().__init__(self.inner.param_groups, {"lr": 1.0})
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def step(self) -> None:  # type: ignore[override]
        """Take a step of it."""
        self.inner.step()


def lookahead(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return one whose state is apart, but in its state_dict."""
    return Lookahead(torch.optim.SGD(parameters, lr=1.0, momentum=0.5))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("make", [Slow, lookahead], ids=["shares all", "shares groups"])
def test_an_optimizer_around_another_follows_the_schedule_and_is_kept(
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    module = nn.Linear(2, 1)
    before = module.weight.detach().clone()
    optimizer = ScheduledOptimizer(module, make, lambda progress, rounds: 0.25)
    module.weight.grad = torch.ones(1, 2)
    optimizer.step(0.0, 1)
    assert torch.allclose(module.weight, before - 0.25)
    assert optimizer.state()[0]


@pytest.mark.parametrize(
    ("factory", "schedule", "message"),
    [
        (Halves, constant, r"Halves, which steps with an Adam of its own: .* parameter group for"),
        (
            torch.optim.Adam([nn.Parameter(torch.zeros(1))]),
            constant,
            r"is a torch.optim.Adam; .*: lambda parameters: torch.optim.Adam\(parameters, lr=...\)",
        ),
        ([], constant, r"optimizer is \[\]; expected a function that makes one"),
        (adamw(), 0, "schedule is int; expected a function"),
        ("adam", constant, "optimizer is 'adam'; expected a function that makes one"),
        (torch.optim.LBFGS, constant, "LBFGS, which runs the model several times in a step"),
        (Sharpness, constant, r"makes a Sharpness, whose step\(\) needs arguments, .*: take SGD"),
        (lambda parameters: None, constant, "optimizer makes a NoneType; expected a torch.optim"),
        (adamw(), torch.optim.lr_scheduler.StepLR, "schedule is StepLR; expected a function"),
        (adamw(), WarmupCosine, r"schedule is WarmupCosine; .* such as WarmupCosine\(\)"),
        (adamw(), 0.1, "schedule is float; expected a function"),
        (
            adamw(),
            lambda progress: 1.0,
            r"schedule is a function of other arguments; expected a function \(progress",
        ),
    ],
)
def test_what_is_no_factory_or_no_schedule_is_refused(
    factory: Any, schedule: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        ScheduledOptimizer(nn.Linear(2, 2), factory, schedule)


def test_a_rate_may_be_a_tensor() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=torch.tensor(0.1))

    optimizer = ScheduledOptimizer(nn.Linear(2, 2), make, WarmupCosine(final_factor=0.0))
    optimizer.step(1.0, 2)
    _, meta = optimizer.state()
    assert json.loads(json.dumps(meta))["optimizer"]["groups"][0]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize("factor", [math.nan, math.inf, -0.5, None, "1"])
def test_a_schedule_returns_finite_numbers_of_at_least_0(factor: Any) -> None:
    scheduled = ScheduledOptimizer(nn.Linear(2, 2), adamw(), lambda progress, rounds: factor)
    with pytest.raises(ValueError, match=r"schedule returned .* after 0\.5 of 3 rounds; expected"):
        scheduled.step(0.5, 3)


def test_a_server_is_told_of_a_clients_schedule_but_not_what_it_returned() -> None:
    data: Any = TensorDataset(torch.zeros(2, 1, 3), torch.zeros(2, dtype=torch.int64))
    client = SplitClient(nn.Linear(3, 2), data, schedule=lambda progress, rounds: math.nan)
    strategy = PSL(nn.Sequential(nn.Flatten(), nn.Linear(2, 4)), num_classes=4, steps_per_round=2)
    message = r"the schedule returned something else than a factor after 0 of 1 rounds; expected a"
    with pytest.raises(LinkError, match=message):
        strategy.fit([client], 1)


def test_an_optimizer_has_weights_of_its_module_and_a_learning_rate() -> None:
    other = nn.Linear(2, 2)

    def of_another(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(other.parameters(), lr=0.1)

    with pytest.raises(ValueError, match="optimizer makes a SGD of other weights than those it is"):
        ScheduledOptimizer(nn.Linear(2, 2), of_another, constant)

    def without_rate(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        optimizer.param_groups[0]["lr"] = None
        return optimizer

    with pytest.raises(ValueError, match="optimizer makes a SGD without a learning rate"):
        ScheduledOptimizer(nn.Linear(2, 2), without_rate, constant)


def test_gradients_of_weights_without_an_optimizer_do_not_pile_up() -> None:
    module = nn.Linear(2, 2)
    scheduled = ScheduledOptimizer(
        module, lambda parameters: torch.optim.SGD([module.bias], lr=0.1), constant
    )
    assert not scheduled.knows(module)
    module(torch.ones(1, 2)).sum().backward()
    scheduled.zero_grad()
    assert module.weight.grad is None


def test_a_learning_rate_that_somebody_else_sets_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = nn.Linear(2, 1)
    scheduled = ScheduledOptimizer(module, lambda ps: torch.optim.SGD(ps, lr=0.1), constant)
    assert scheduled.optimizer is not None
    other = torch.optim.lr_scheduler.StepLR(scheduled.optimizer, 1, gamma=0.5)
    for _ in range(3):
        module(torch.ones(1, 2)).sum().backward()
        scheduled.step(0.0, 1)
        other.step()
    assert caplog.text.count("the learning rate of SGD was changed from outside") == 1


SCHEDULERS: list[Callable[[torch.optim.Optimizer], Any]] = [
    lambda optimizer: StepLR(optimizer, 1),
    lambda optimizer: CosineAnnealingLR(optimizer, 5),
    lambda optimizer: LinearLR(optimizer),  # sets a third of the learning rate at once
]


def scheduled(
    schedulers: Sequence[Callable[[torch.optim.Optimizer], Any]],
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
) -> OptimizerFactory:
    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = kind(parameters, lr=0.5)  # type: ignore[call-arg]
        for scheduler in schedulers:
            scheduler(optimizer)
        return optimizer

    return make


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=["step", "cosine", "linear"])
def test_an_optimizer_with_a_scheduler_of_torch_follows_the_schedule_and_says_so_once(
    scheduler: Callable[[torch.optim.Optimizer], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler puts a function in place of `step` that seems to need self."""
    model = nn.Linear(2, 1)
    optimizer = ScheduledOptimizer(model, scheduled([scheduler]), lambda progress, rounds: 0.5)
    for step in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step(step, 3)
        assert rate(optimizer) == 0.25
    assert caplog.text.count("a SGD is made with a scheduler of torch, which has no effect") == 1
    assert "schedule=" in caplog.text
    assert "changed from outside" not in caplog.text


def test_a_scheduler_hides_no_step_that_needs_arguments() -> None:
    with pytest.raises(TypeError, match=r"Sharpness, whose step\(\) needs arguments"):
        ScheduledOptimizer(nn.Linear(2, 1), scheduled([SCHEDULERS[0]], Sharpness), constant)


@pytest.mark.parametrize("scheduler", SCHEDULERS[:2], ids=["step", "cosine"])
def test_client_and_server_take_an_optimizer_with_a_scheduler_of_torch(
    scheduler: Callable[[torch.optim.Optimizer], Any], caplog: pytest.LogCaptureFixture
) -> None:
    make = scheduled([scheduler])
    data: Any = TensorDataset(torch.zeros(2, 1, 3), torch.zeros(2, dtype=torch.int64))
    client = SplitClient(nn.Linear(3, 2), data, optimizer=make)
    strategy = PSL(nn.Sequential(nn.Flatten(), nn.Linear(2, 4)), num_classes=4, optimizer=make)
    for optimizer in (client.optimizer, strategy.upper.optimizer):
        assert optimizer.base_lrs == [0.5]
    assert caplog.text.count("is made with a scheduler of torch") == 2


def test_what_checkpoints_do_not_keep_of_an_optimizer_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Slow(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "slow": 1}

    scheduled = ScheduledOptimizer(nn.Linear(2, 1), lambda ps: Slow(ps, lr=0.1), constant)
    scheduled.state()
    scheduled.state()
    assert caplog.text.count("checkpoints do not keep 'slow' of Slow.state_dict()") == 1
