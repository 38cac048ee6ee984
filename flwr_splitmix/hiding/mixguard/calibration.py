"""Calibration: a small residual network that corrects a non-linear trunk's effect on mixtures."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.hiding.correction import Correction, relative_error

LEARNING_RATE = 1e-3


class CalibrationBlock(nn.Module):
    """`z + Dropout(W_up GELU(W_down z))`, the identity at first (`W_up = 0`).

    Source: MixGuard, equations 20 and 21; `W_up = 0` is ours.
    """

    def __init__(self, width: int, rank: int, dropout: float) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.up.weight)

    def forward(self, z: Tensor) -> Tensor:  # noqa: D102
        learned = self.up(F.gelu(self.down(z.to(self.down.weight.dtype))))
        calibrated: Tensor = z + self.dropout(learned).to(z.dtype)
        return calibrated


class Calibrator(nn.Module):
    """`C`: a sequence of calibration blocks, (..., width) to the same shape and dtype.

    Parameters
    ----------
    width
        The model's hidden size d.
    rank
        Rank of the bottleneck; None is d / 32, at least 4: 64 at the paper's d = 2048.

    Raises
    ------
    ValueError
        If rank or blocks are below 1, or dropout is not in [0, 1).
    """

    def __init__(
        self, width: int, rank: int | None = None, blocks: int = 1, dropout: float = 0.1
    ) -> None:
        super().__init__()
        rank = max(4, width // 32) if rank is None else rank
        if rank < 1 or blocks < 1:
            raise ValueError(f"rank is {rank} and blocks is {blocks}; both must be at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; it must be at least 0 and less than 1")
        self.blocks = nn.Sequential(
            *(CalibrationBlock(width, rank, dropout) for _ in range(blocks))
        )

    def forward(self, decoded: Tensor) -> Tensor:  # noqa: D102
        return self.blocks(decoded)  # type: ignore[no-any-return]


class Calibration(Correction):
    """A calibrator with its optimizer: trained on public texts, frozen on private ones.

    Calling it applies `C` without dropout; gradients pass through it without updating it.

    Parameters
    ----------
    calibrator
        Already on its device.
    learning_rate
        Learning rate of AdamW; the paper's is unknown.
    """

    def __init__(self, calibrator: Calibrator, *, learning_rate: float = LEARNING_RATE) -> None:
        super().__init__(calibrator, learning_rate=learning_rate)
        self.calibrator = calibrator

    def __call__(self, decoded: Tensor) -> Tensor:
        """Return `C(h^)`, shaped as `h^`, inside the graph of `h^`."""
        return self.calibrator(decoded)  # type: ignore[no-any-return]

    def step(self, decoded: Tensor, plain: Tensor, mask: Tensor) -> float:
        """Take one optimizer step on public texts; return the loss before it.

        Parameters
        ----------
        decoded, plain, mask
            `h^` and `h` (b, T, d), which get no gradient, and (b, T).
        """
        _, loss = self.learn([decoded], plain, mask)
        return float(loss)

    @torch.no_grad()
    def error(self, decoded: Tensor, plain: Tensor, mask: Tensor) -> tuple[float, float]:
        """Return `||h^ - h|| / ||h||` over real tokens, before and after calibration.

        Parameters
        ----------
        decoded, plain
            `h^` and `h`, (b, T, d).
        mask
            (b, T), nonzero at real tokens.
        """
        before = relative_error(decoded, plain, mask)
        return before, relative_error(self(decoded), plain, mask)


class CalibratedTrunk(nn.Module):
    """A trunk followed by a client's calibrator; it takes the trunk's arguments.

    Use it in place of the trunk, as tails are trained after both: for logits, for
    `segments.language.generate`, for `clients.score_locally`.

    Source: MixGuard, section 4.5.
    """

    def __init__(self, trunk: nn.Module, calibration: Calibration) -> None:
        super().__init__()
        self.trunk = trunk
        self.calibrator = calibration.calibrator

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *cache: Any) -> Tensor:
        """Pass hidden states (b, T, d) through both; a cache goes to the trunk."""
        calibrated: Tensor = self.calibrator(self.trunk(hidden, mask, *cache))
        return calibrated
