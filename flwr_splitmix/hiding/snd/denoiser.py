"""The denoiser: predicts the trunk's output without noise, given the noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.device import in_float64
from flwr_splitmix.hiding.mixguard.calibration import calibration_loss
from flwr_splitmix.storage import pack_optimizer, under, unpack_optimizer


class Denoiser(nn.Module):
    """Maps outputs (b, T, d) for noisy states, the states (b, T, d) and noise to denoised outputs.

    Transformer blocks over the places of a text, with the three vectors of each place as input.
    Their result is added to the noisy output; initially the module is the identity.

    Parameters
    ----------
    width
        d.
    inner, blocks
        Width of the blocks, a multiple of 4; and their number.
    causal
        Whether a place sees only the places before it. This is required if words are predicted, as
        the states include the next word.

    Raises
    ------
    ValueError
        If `inner` is not a positive multiple of 4, or `blocks` is below 1.

    Source: Split-N-Denoise (Mai et al., 2023), section 3.4. There the output is one vector per
    text; here it is one per token, as a tail needs.
    """

    def __init__(self, width: int, inner: int, blocks: int, *, causal: bool) -> None:
        super().__init__()
        if inner < 4 or inner % 4:
            raise ValueError(f"inner is {inner}; it must be a positive multiple of 4")
        if blocks < 1:
            raise ValueError(f"blocks is {blocks}; it must be at least 1")
        self.causal = causal
        self.enter = nn.Linear(3 * width, inner)
        layer = nn.TransformerEncoderLayer(
            inner, 4, 2 * inner, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.leave = nn.Linear(inner, width)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, outputs: Tensor, states: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
        """Return the outputs without noise, of their dtype; mask (b, T) is 0 at padding."""
        exact = self.leave.weight.dtype
        told = torch.cat([part.to(exact) for part in (outputs, states, noise)], dim=-1)
        length = told.shape[1]
        ahead = None
        if self.causal:
            ahead = torch.ones(length, length, dtype=torch.bool, device=told.device).triu(1)
        within = self.blocks(self.enter(told), mask=ahead, src_key_padding_mask=mask == 0)
        denoised: Tensor = outputs + self.leave(within).to(outputs.dtype)
        return denoised


class Denoising:
    """A denoiser with its optimizer: trained on public texts, frozen on private ones.

    Parameters
    ----------
    denoiser
        Already on its device.
    learning_rate
        Learning rate of AdamW.
    """

    def __init__(self, denoiser: Denoiser, *, learning_rate: float) -> None:
        self.denoiser = denoiser.eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(denoiser.parameters(), lr=learning_rate)

    def __call__(self, outputs: Tensor, states: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
        """Return the outputs without noise, inside their graph."""
        return self.denoiser(outputs, states, noise, mask)  # type: ignore[no-any-return]

    def step(
        self, outputs: Tensor, states: Tensor, noise: Tensor, plain: Tensor, mask: Tensor
    ) -> tuple[float, float]:
        """Take a step towards `plain`, the outputs of the same texts without noise.

        Returns
        -------
        `||x - plain|| / ||plain||` over real tokens, for x the noisy outputs, and for x the
        denoised outputs before the step.
        """
        given = [part.detach() for part in (outputs, states, noise)]
        self.denoiser.train().requires_grad_(True)
        try:
            denoised = self.denoiser(*given, mask)
            loss = calibration_loss(denoised, plain.detach(), mask)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
            self.denoiser.eval().requires_grad_(False)
        here = mask != 0
        true = in_float64(plain[here])
        before, after = (
            float((in_float64(guess.detach()[here]) - true).norm() / true.norm())
            for guess in (outputs, denoised)
        )
        return before, after

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return weights and moments as named tensors, and the optimizer's plain values."""
        weights = {f"weight.{name}": t for name, t in self.denoiser.state_dict().items()}
        moments, meta = pack_optimizer(self.optimizer, "moment")
        return weights | moments, meta

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state`, for the same denoiser."""
        self.denoiser.load_state_dict(under("weight", tensors))
        unpack_optimizer(self.optimizer, tensors, meta, "moment")
