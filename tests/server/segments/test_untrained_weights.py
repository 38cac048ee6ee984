"""Weights at the server that no optimizer knows are named; modules without values are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy, sgd

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


@pytest.mark.parametrize(
    ("upper", "said"),
    [
        (nn.Linear, "upper is the class Linear; needed is a torch.nn.Module"),
        (torch.relu, "upper is a builtin_function_or_method; needed is a torch.nn.Module"),
        (nn.Linear(2, 2, device="meta"), "upper is on the device 'meta', without values"),
    ],
)
def test_what_is_no_module_with_weights_is_refused(upper: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        PSL(upper, num_classes=2, device="cpu")
