"""Networks of clients that correct the trunk's outputs, and their training on public texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.device import in_float64
from flwr_splitmix.optimizer_state import pack_optimizer, unpack_optimizer
from flwr_splitmix.storage import under


class Correction:
    """A network with its optimizer: trained on public texts, frozen on private ones.

    Parameters
    ----------
    network
        Already on its device; its results are outputs (b, T, d).
    learning_rate
        Learning rate of AdamW.
    """

    def __init__(self, network: nn.Module, *, learning_rate: float) -> None:
        self._network = network.eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate)

    def learn(self, inputs: Sequence[Tensor], plain: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Take one optimizer step towards `plain` on public texts.

        Parameters
        ----------
        inputs
            The network's arguments, which get no gradient.
        plain, mask
            (b, T, d) and (b, T); see `calibration_loss`.

        Returns
        -------
        The network's result (b, T, d) and the loss before the step, without a graph.
        """
        self._network.train().requires_grad_(True)
        try:
            corrected = self._network(*(each.detach() for each in inputs))
            loss = calibration_loss(corrected, plain.detach(), mask)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
            self._network.eval().requires_grad_(False)
        return corrected.detach(), loss.detach()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return weights and moments as named tensors, and the optimizer's plain values."""
        weights = {f"weight.{name}": t for name, t in self._network.state_dict().items()}
        moments, meta = pack_optimizer(self.optimizer, "moment")
        return weights | moments, meta

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state`, for the same network."""
        self._network.load_state_dict(under("weight", tensors))
        unpack_optimizer(self.optimizer, tensors, meta, "moment")


def calibration_loss(calibrated: Tensor, plain: Tensor, mask: Tensor) -> Tensor:
    """Return the mean squared error over the entries of real tokens, a float32 (or 64) scalar.

    Parameters
    ----------
    calibrated, plain
        The corrected states, and their target: `C(h^)` and `h`, (..., T, d).
    mask
        (..., T), 0 at padding.

    Raises
    ------
    ValueError
        If shapes do not fit or no token is real.

    Source: MixGuard, equation 23.
    """
    _check(calibrated, plain, mask)
    real = mask != 0
    exact = torch.promote_types(calibrated.dtype, torch.float32)
    return F.mse_loss(calibrated[real].to(exact), plain[real].to(exact))


def relative_error(outputs: Tensor, plain: Tensor, mask: Tensor) -> float:
    """Return `||outputs - plain|| / ||plain||` over real tokens, computed in float64.

    Parameters and errors are those of `calibration_loss`.
    """
    _check(outputs, plain, mask)
    real = mask != 0
    true = in_float64(plain[real])
    return float((in_float64(outputs.detach()[real]) - true).norm() / true.norm())


def _check(decoded: Tensor, plain: Tensor, mask: Tensor) -> None:
    if decoded.shape != plain.shape or mask.shape != plain.shape[:-1]:
        raise ValueError(
            f"decoded, plain and mask have shapes {tuple(decoded.shape)}, {tuple(plain.shape)} and "
            f"{tuple(mask.shape)}; they must be (..., T, d), the same, and (..., T)"
        )
    if not bool((mask != 0).any()):
        raise ValueError("the mask is 0 everywhere; at least one token must be real")
