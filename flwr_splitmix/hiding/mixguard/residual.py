"""Residual decoding, an extension: what the trunk adds is decoded, not what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flwr_splitmix.device import in_float64
from flwr_splitmix.hiding.mixguard.secret import Secret

DEGREE = 6
"""Highest power of the cosine in the kernel."""

MEMORY = 0.99
"""Factor by which a public batch's weight decays with each next one: the trunk changes."""

RIDGE = 1e-3
"""Relative ridge on the kernel's diagonal, for what no kernel explains."""

MAX_SWEEPS = 200
"""Sweeps of coordinate descent for the kernel's coefficients."""


class ResidualKernel:
    """Weights `v` of the decoding `h_tau + sum_l v_l (G_l - S_l)`.

    A pre-norm trunk returns its input plus a residual. The client knows the first part of the
    target's answer, `h_tau`. It predicts the second, `g(h_tau)` with `g(x) = f(x) - x`, from the
    residuals of its messages, as a Gaussian process would: with a kernel
    `E <g(x), g(y)> = sum_n a_n cos(x, y)^n`, `a_n >= 0`, fitted to pairs of public texts' hidden
    states and messages. Before the first public batch `v` is the secret's own decoding.

    The gradient of message l is then `v_l` times the decoded target's, and does not reveal `w`
    exactly. This stops neither blind source separation nor the repeated-text attack.

    Source: none.
    """

    def __init__(self) -> None:
        size = DEGREE + 1
        self._normal = torch.zeros(size, size, dtype=torch.float64)
        self._moment = torch.zeros(size, dtype=torch.float64)
        self._fitted: Tensor | None = None

    def learn(
        self,
        messages: Sequence[Tensor],
        outputs: Sequence[Tensor],
        plain: Tensor,
        plain_output: Tensor,
        mask: Tensor,
    ) -> None:
        """Learn from the trunk's outputs of a public batch, mixed and plain.

        Parameters
        ----------
        messages, outputs
            m tensors (b, T, d) each.
        plain, plain_output
            (b, T, d): the batch's own hidden states, and the trunk's output for them.
        mask
            (b, T), 0 at padding.
        """
        points = in_float64(torch.stack([plain, *messages]).detach())
        residuals = in_float64(torch.stack([plain_output, *outputs]).detach()) - points
        real = (mask != 0).to(points.device)
        points, residuals = points[:, real], residuals[:, real]  # (m + 1, tokens, d)
        powers = _powers(_gram(torch.nn.functional.normalize(points, dim=-1))).mean(1)
        inner = _gram(residuals).mean(0)
        size = inner[0, 0]
        if not bool(size > 0):  # a trunk that adds nothing
            return
        features, aims = powers.flatten(1).cpu(), (inner / size).flatten().cpu()
        self._normal = MEMORY * self._normal + features @ features.T
        self._moment = MEMORY * self._moment + features @ aims
        self._fitted = None

    @property
    def coefficients(self) -> Tensor | None:
        """`a_n` for n from 0, float64; None before the first public batch."""
        if not bool(self._normal.any()):
            return None
        if self._fitted is None:
            self._fitted = _nonnegative(self._normal, self._moment)
        return self._fitted

    def weights(self, messages: Sequence[Tensor], target: Tensor, mask: Tensor) -> Tensor | None:
        """Return `v` (m, b) of a batch, float64; None if nothing is known yet.

        Parameters
        ----------
        messages, target
            m tensors (b, T, d), and (b, T, d).
        mask
            (b, T), 0 where the target has no token.
        """
        coefficients = self.coefficients
        if coefficients is None or not bool(coefficients.any()):
            return None
        points = in_float64(torch.stack([target, *messages]).detach())
        cosines = _gram(torch.nn.functional.normalize(points, dim=-1).flatten(1, 2))
        powers = _powers(cosines)
        powers = powers.reshape(
            len(powers), *mask.shape, *powers.shape[2:]
        )  # (D + 1, b, T, m + 1, m + 1)
        real = in_float64(mask != 0)[..., None, None]
        mean = (powers * real).sum(2) / real.sum(1)
        kernel = torch.einsum("n,nbij->bij", coefficients.to(mean.device), mean)
        among, towards = kernel[:, 1:, 1:], kernel[:, 1:, :1]
        ridge = RIDGE * kernel[:, :1, :1] * torch.eye(len(messages), device=kernel.device)
        weights: Tensor = torch.linalg.solve(among + ridge, towards)
        return weights.squeeze(-1).T

    def decode(
        self, outputs: Tensor, messages: Tensor, target: Tensor, mask: Tensor, secret: Secret
    ) -> tuple[Tensor, Tensor]:
        """Decode the target's part of the trunk's outputs, as two summands.

        Parameters
        ----------
        outputs, messages
            (m, b, T, d): `G` and `S`.
        target, mask
            (b, T, d) and (b, T), as in `weights`.
        secret
            The batch's secret; its own decoding is the initial `v`.

        Returns
        -------
        `h_tau - sum_l v_l S_l`, in the head's graph, and `sum_l v_l G_l`, in the trunk's; both in
        float32 or better, as the caller rounds their sum once.
        """
        weights = self.weights(messages.unbind(), target, mask)
        if weights is None:
            decoding = secret.decoding
            weights = decoding.T if decoding.ndim == 2 else decoding[:, None]
        exact = torch.promote_types(outputs.dtype, torch.float32)
        weights = weights.to(outputs.device, exact)[..., None, None]
        local = target.to(exact) - (weights * messages.to(exact)).sum(0)
        return local, (weights * outputs.to(exact)).sum(0)

    def state(self) -> dict[str, Tensor]:
        """Return what was learned, from public texts only."""
        return {"normal": self._normal, "moment": self._moment}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        self._normal, self._moment = tensors["normal"].clone(), tensors["moment"].clone()
        self._fitted = None


def _gram(points: Tensor) -> Tensor:
    """Return the inner products of (j, t, d) at each token: (t, j, j)."""
    return torch.einsum("itd,jtd->tij", points, points)


def _powers(cosines: Tensor) -> Tensor:
    """Return all powers of (...), from 0: (D + 1, ...)."""
    return torch.stack([cosines**n for n in range(DEGREE + 1)])


def _nonnegative(normal: Tensor, moment: Tensor) -> Tensor:
    """Minimise `a^T N a / 2 - a^T b` over a >= 0 by coordinate descent."""
    weights = torch.zeros_like(moment)
    for _ in range(MAX_SWEEPS):
        for n in range(len(weights)):
            step = (moment[n] - normal[n] @ weights) / normal[n, n].clamp(min=1e-12)
            weights[n] = (weights[n] + step).clamp(min=0)
    return weights
