"""Products of float32 matrices by oneDNN: only where faster, as precise, and only in the block."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn

from flwr_splitmix.experiments import products
from flwr_splitmix.experiments.grid import Workplace, run_grid
from flwr_splitmix.experiments.products import fast_products
from tests.experiments.conftest import SMALL, cell_of

CPU = torch.device("cpu")
MATMUL = getattr(torch.backends.mkldnn, "matmul", None)
switchable = pytest.mark.skipif(
    MATMUL is None or not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="this torch has no switch between MKL and oneDNN",
)


def switches() -> tuple[str, bool]:
    assert MATMUL is not None
    fused = torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    return MATMUL.fp32_precision, fused


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine be one where MKL is slow."""
    monkeypatch.setattr(products, "_half_width_with_mkl", lambda: True)


@switchable
@pytest.mark.usefixtures("amd")
def test_the_switches_are_restored_also_after_an_error() -> None:
    before = switches()
    with contextlib.suppress(ZeroDivisionError), fast_products(CPU) as used:
        assert (switches() != before) == used
        raise ZeroDivisionError
    assert switches() == before


@switchable
@pytest.mark.usefixtures("amd")
def test_a_step_has_the_precision_of_float32() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    tokens = torch.randn(40, 16, 64)

    def gradients(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        module.zero_grad()
        module(inputs).square().sum().backward()
        return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    with fast_products(CPU):
        ours = gradients(model, tokens).double()
    exact = gradients(model.double(), tokens.double())
    assert float((ours - exact).norm() / exact.norm()) < 1e-5


@switchable
@pytest.mark.usefixtures("amd")
def test_reduced_precision_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor with units for bfloat16, which the same switch would use."""
    monkeypatch.setattr(products, "_error_of_a_product", lambda: 2e-3)
    before = switches()
    with fast_products(CPU) as used:
        assert not used
        assert switches() == before


@switchable
def test_nothing_changes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    before = switches()
    with fast_products(torch.device("meta")) as used:
        assert (used, switches()) == (False, before)
    monkeypatch.setattr(products, "_half_width_with_mkl", lambda: False)
    with fast_products(CPU) as used:
        assert (used, switches()) == (False, before)


@switchable
@pytest.mark.usefixtures("amd")
def test_a_cell_uses_them(tmp_path: Path) -> None:
    before, during = switches(), set()
    run_grid(
        [cell_of("PSL")],
        Workplace(tmp_path, SMALL, "cpu"),
        on_progress=lambda progress: during.add((progress.state, switches())),
    )
    with fast_products(CPU):
        expected = switches()
    assert {values for state, values in during if state == "round"} == {expected}
    assert switches() == before
