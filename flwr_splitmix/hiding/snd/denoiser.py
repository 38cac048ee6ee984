"""The denoiser: predicts the trunk's output without noise, given the noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flwr_splitmix.hiding.correction import Correction, relative_error


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
        features = torch.cat([part.to(exact) for part in (outputs, states, noise)], dim=-1)
        length = features.shape[1]
        ahead = None
        if self.causal:
            ahead = torch.ones(length, length, dtype=torch.bool, device=features.device).triu(1)
        within = self.blocks(self.enter(features), mask=ahead, src_key_padding_mask=mask == 0)
        denoised: Tensor = outputs + self.leave(within).to(outputs.dtype)
        return denoised


class Denoising(Correction):
    """A denoiser with its optimizer: trained on public texts, frozen on private ones.

    Parameters
    ----------
    denoiser
        Already on its device.
    learning_rate
        Learning rate of AdamW.
    """

    def __init__(self, denoiser: Denoiser, *, learning_rate: float) -> None:
        super().__init__(denoiser, learning_rate=learning_rate)
        self.denoiser = denoiser

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
        denoised, _ = self.learn([outputs, states, noise, mask], plain, mask)
        return relative_error(outputs, plain, mask), relative_error(denoised, plain, mask)
