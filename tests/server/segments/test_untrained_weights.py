"""Weights at the server that no optimizer knows are named; modules without values are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flwr_splitmix.events import RoundDone
from flwr_splitmix.observers import Observer
from flwr_splitmix.strategies import PSL, USplitSL
from flwr_splitmix.testing.toy import AnyToy, Toy, sgd
from flwr_splitmix.testing.toy_texts import TextToy

TOY = Toy()


def test_an_upper_segment_whose_head_was_replaced_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    upper = nn.Sequential(TOY.upper())
    strategy = PSL(upper, num_classes=TOY.classes, device="cpu", steps_per_round=1)
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        strategy.fit(TOY.make_clients(sgd(0.1)), 1)
        assert "does not know" not in caplog.text
        upper[0] = TOY.upper()
        strategy.fit(TOY.make_clients(sgd(0.1)), 1)
    assert "the server's upper has weights to train that its optimizer does not know" in caplog.text


class Unfreezing(Observer):
    """Unfreezes a module after the first round."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def on_round(self, event: RoundDone) -> None:
        self.module.requires_grad_(True)


@pytest.mark.parametrize("shape", ["upper", "trunk"])
def test_weights_that_are_unfrozen_later_are_named_once(
    shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Progressive unfreezing has no effect on them."""
    toy: AnyToy = TOY if shape == "upper" else TextToy()
    module = toy.server()
    frozen = next(module.parameters()).requires_grad_(False)
    before = frozen.clone()
    strategy = {"upper": PSL, "trunk": USplitSL}[shape](
        module, device="cpu", steps_per_round=1, observers=[Unfreezing(module)]
    )
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        strategy.fit(toy.clients_for(strategy), 3)
    log = caplog.text
    warning = f"the server's {shape} has weights to train that its optimizer does not know"
    assert log.count(warning) == 1
    assert log.index("round 1/3") < log.index(warning) < log.index("round 2/3")
    assert frozen.requires_grad
    assert torch.equal(frozen, before)


def test_weights_frozen_after_the_strategy_was_made_learn_once_unfrozen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    upper = TOY.upper()
    strategy = PSL(upper, device="cpu", steps_per_round=1, observers=[Unfreezing(upper)])
    frozen = next(upper.parameters()).requires_grad_(False)
    before = frozen.clone()
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        strategy.fit(TOY.make_clients(sgd(0.1)), 1)
        assert torch.equal(frozen, before)
        strategy.fit(TOY.make_clients(sgd(0.1)), 1)
    assert not torch.equal(frozen, before)
    assert "does not know" not in caplog.text


@pytest.mark.parametrize(
    ("upper", "message"),
    [
        (nn.Linear, "upper is the class Linear; expected a torch.nn.Module"),
        (torch.relu, "upper is a builtin_function_or_method; expected a torch.nn.Module"),
        (nn.Linear(2, 2, device="meta"), "upper is on the device 'meta', without values"),
    ],
)
def test_what_is_no_module_with_weights_is_refused(upper: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        PSL(upper, num_classes=2, device="cpu")
