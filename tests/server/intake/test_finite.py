"""Numbers that are not finite: found at once on a CPU, replaced and reported late elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from flwr_splitmix.clients import PrivacyBudget, SplitClient
from flwr_splitmix.clients.split import graphs as client_module
from flwr_splitmix.clients.split import lower_end
from flwr_splitmix.finite import squares_finite
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.server.intake.finite import FiniteCheck
from flwr_splitmix.strategies import PSL, CutMixSL, DPCutMixSL
from flwr_splitmix.testing.toy import Toy, sgd

BAD = torch.tensor([1.0, float("inf"), float("nan")])


class Elsewhere(FiniteCheck):
    """Treats tensors of the CPU as an accelerator's."""

    def passes(self, tensor: Tensor) -> bool | None:
        return None


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations that hand a number of a tensor to Python, and so wait for its device.

    Integers are left out: labels are on the CPU wherever the model is.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.functions: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "local_scalar_dense" in str(func) and args[0].dtype in (torch.float64, torch.bool):
            self.functions.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_cpu_answers_at_once() -> None:
    check = FiniteCheck()
    assert check.passes(torch.ones(3)) is True
    assert check.passes(BAD) is False
    assert check.passes(torch.tensor([3e38, 3e38])) is True  # only their sum overflows


def test_gradients_of_float16_may_have_a_norm_beyond_its_range() -> None:
    assert squares_finite([torch.full((4,), 6e4, dtype=torch.float16)])
    assert not squares_finite([torch.full((4,), torch.inf, dtype=torch.float16)])
    assert not squares_finite([torch.full((4,), 1e30)])


def test_elsewhere_bad_tensors_become_zeros_and_their_senders_are_named_late() -> None:
    check = FiniteCheck()
    assert torch.equal(check.cleaned(1, torch.ones(3)), torch.ones(3))
    assert torch.equal(check.cleaned(2, BAD), torch.zeros(3))
    assert torch.equal(check.cleaned(2, torch.ones(3)), torch.ones(3))
    assert check.late() == [2]
    assert check.late() == []


def test_what_an_interrupted_round_has_left_costs_no_client_of_the_next_its_round() -> None:
    """After a step with NaN and Ctrl-C, the next `fit` leaves out nobody of the same index."""
    toy = Toy(clients=2)
    strategy = PSL(toy.upper(), optimizer=sgd(0.1), device="cpu")
    strategy._intake.finite.cleaned(1, BAD)
    strategy.fit(toy.make_clients(), 1)
    assert strategy.rows[-1]["clients_failed"] == 0


def test_a_client_that_sends_nan_is_reported_at_the_end_of_the_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lower_end, "check_finite", lambda *_: None)  # it does not look itself
    toy = Toy(clients=4, batch_norm=False)
    strategy = CutMixSL(toy.upper(), optimizer=sgd(0.1), device="cpu")
    strategy._intake.finite = Elsewhere()
    clients = toy.make_clients(sgd(0.1))
    with torch.no_grad():
        clients[2].segment.embed.bias.fill_(float("nan"))  # type: ignore[operator, union-attr]
    strategy.fit(clients, 1)
    assert all(t.isfinite().all() for t in strategy.upper.module.state_dict().values())


def test_too_large_a_gradient_costs_a_step_and_no_client(caplog: pytest.LogCaptureFixture) -> None:
    """Clients with a budget refuse it; what the server sends must not cost them the round."""
    toy = Toy(clients=4, batch_norm=False)
    noise = GaussianNoise(sigma_s=1.0, sigma_y=1.0)

    def steep(logits: Tensor, targets: Tensor) -> Tensor:
        return 1e12 * cross_entropy(logits, targets, reduction="none")

    strategy = DPCutMixSL(toy.upper(), noise=noise, optimizer=sgd(1e-20), loss=steep, device="cpu")
    budget = PrivacyBudget(max_epsilon=1e9)
    strategy.fit(toy.make_clients(sgd(0.1), privacy=budget), 1)
    assert [row["clients_failed"] for row in strategy.rows] == [0]
    assert "of the smashed data had numbers beyond 1e+06 and were not sent" in caplog.text


@pytest.mark.parametrize("waits", [False, True])
def test_no_step_waits_for_an_accelerator(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps ask for no number; with the checks of a CPU they do, which shows that it is seen."""
    toy = Toy(clients=4)
    strategy = CutMixSL(toy.upper(), optimizer=sgd(0.1), device="cpu", server_update="sum")
    strategy.upper.waits = waits
    if not waits:
        strategy._intake.finite = Elsewhere()
        monkeypatch.setattr(client_module, "check_received", lambda *_, **__: None)
        monkeypatch.setattr(lower_end, "check_finite", lambda *_: None)
        monkeypatch.setattr(lower_end, "may_step", lambda *_, **__: True)
    watch = Waits()
    right = SplitClient.step
    counts: list[int] = []

    def step(self: SplitClient, **arguments: Any) -> dict[str, Any]:
        counts.append(len(watch.functions))
        return right(self, **arguments)

    step._splitmix_exchange = True  # type: ignore[attr-defined]
    monkeypatch.setattr(SplitClient, "step", step)
    with watch:
        strategy.fit(toy.make_clients(sgd(0.1)), 1)
    per_step = counts[8] - counts[4]  # from one step's first call to the next one's
    assert (per_step > 0) if waits else (per_step == 0), watch.functions
