"""Calibration starts as the identity, learns on real tokens alone, and is frozen in between."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flwr_splitmix.hiding.mixguard import Calibration, Calibrator, calibration_loss


def texts(count: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Make decoded and plain states that differ by a linear map of rank one, and a mask."""
    plain = torch.randn(count, 6, 16)
    decoded = plain + (plain @ torch.ones(16, 1)) @ torch.randn(1, 16) * 0.1
    return decoded, plain, torch.ones(count, 6)


def test_it_starts_as_the_identity() -> None:
    calibrator = Calibrator(16, blocks=3)
    z = torch.randn(2, 5, 16)
    assert torch.equal(calibrator.train()(z), z)
    assert calibrator(z.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(("width", "rank"), [(2048, 64), (384, 12), (32, 4)])
def test_its_rank_follows_the_width(width: int, rank: int) -> None:
    shapes = {tuple(p.shape) for p in Calibrator(width).parameters()}
    assert shapes == {(rank, width), (width, rank)}


def test_a_block_is_the_papers_formula() -> None:
    calibrator = Calibrator(8, rank=2).eval()
    down, up = (torch.randn(2, 8), torch.randn(8, 2))
    calibrator.load_state_dict({"blocks.0.down.weight": down, "blocks.0.up.weight": up})
    z = torch.randn(3, 8)
    x = z @ down.T
    gelu = x * 0.5 * (1 + torch.erf(x / 2**0.5))
    torch.testing.assert_close(calibrator(z), z + gelu @ up.T)


def test_the_loss_counts_real_tokens_alone() -> None:
    plain = torch.zeros(2, 3, 4)
    off = torch.tensor([1.0, 2.0, 100.0])[None, :, None].expand(2, 3, 4)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert calibration_loss(off, plain, mask).item() == pytest.approx((1 + 4 + 1) / 3)


def test_it_learns_what_the_trunk_does_to_mixtures() -> None:
    torch.manual_seed(0)
    calibration = Calibration(Calibrator(16, dropout=0.0), learning_rate=1e-2)
    decoded, plain, mask = texts()
    before, after = calibration.error(decoded, plain, mask)
    assert before == after
    expected = (decoded - plain).norm() / plain.norm()
    assert before == pytest.approx(expected.item(), rel=1e-5)
    losses = [calibration.step(decoded, plain, mask) for _ in range(300)]
    assert losses[-1] < 0.1 * losses[0]
    assert calibration.error(decoded, plain, mask)[1] < 0.4 * before


def test_private_steps_pass_through_it_and_leave_it_alone() -> None:
    calibration = Calibration(Calibrator(16, dropout=0.9))
    decoded, plain, mask = texts(4)
    calibration.step(decoded, plain, mask)
    calibration.step(decoded, plain, mask)
    private = decoded.clone().requires_grad_()
    assert torch.equal(calibration(private), calibration(private))  # no dropout
    calibration(private).square().sum().backward()  # type: ignore[no-untyped-call]
    assert private.grad is not None
    assert all(p.grad is None for p in calibration.calibrator.parameters())


def test_dropout_acts_while_it_learns() -> None:
    torch.manual_seed(0)
    calibration = Calibration(Calibrator(16, dropout=0.9), learning_rate=1e-2)
    decoded, plain, mask = texts(4)
    for _ in range(5):
        calibration.step(decoded, plain, mask)
    weights = [p.clone() for p in calibration.calibrator.parameters()]
    losses = set()
    for _ in range(3):
        for parameter, saved in zip(calibration.calibrator.parameters(), weights, strict=True):
            parameter.data.copy_(saved)
        losses.add(calibration.step(decoded, plain, mask))
    assert len(losses) == 3


def test_resumed_equals_uninterrupted() -> None:
    decoded, plain, mask = texts(4)
    first = Calibration(Calibrator(16, blocks=2, dropout=0.0))
    for _ in range(3):
        first.step(decoded, plain, mask)
    tensors, meta = first.state()
    second = Calibration(Calibrator(16, blocks=2, dropout=0.0))
    second.restore({name: tensor.clone() for name, tensor in tensors.items()}, meta)
    for _ in range(3):
        assert first.step(decoded, plain, mask) == second.step(decoded, plain, mask)
    assert torch.equal(first(decoded), second(decoded))


def test_the_state_of_one_that_never_stepped_is_whole() -> None:
    first, second = Calibration(Calibrator(16)), Calibration(Calibrator(16))
    second.restore(*first.state())
    ours, theirs = first.calibrator.state_dict(), second.calibrator.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_bad_inputs_are_said() -> None:
    decoded, plain, mask = texts(2)
    with pytest.raises(ValueError, match=r"shapes \(2, 6, 16\), \(2, 6, 16\) and \(2, 5\)"):
        calibration_loss(decoded, plain, mask[:, :5])
    with pytest.raises(ValueError, match="at least one token must be real"):
        Calibration(Calibrator(16)).step(decoded, plain, mask * 0)
    with pytest.raises(ValueError, match="rank is 0 and blocks is 1"):
        Calibrator(16, rank=0)
    with pytest.raises(ValueError, match=r"dropout is 1.0"):
        Calibrator(16, dropout=1.0)
