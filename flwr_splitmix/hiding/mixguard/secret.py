"""A batch's secret: mixes sources into messages and decodes the trunk's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flwr_splitmix.words import counted


@dataclass(frozen=True, repr=False, eq=False)
class Secret:
    """One client's secret for one batch, never sent; its repr shows only sizes.

    All tensors are float64 on the CPU. With a leading axis of samples it holds b secrets, one per
    sample of the batch (an extension; the paper has one per batch).

    Parameters
    ----------
    signs
        `s` (m,) or (b, m), of -1 and +1, not all equal.
    mixing
        `A` (m, k) or (b, m, k), positive, with `s^T A = e_tau^T`: the sum of the signed messages
        is the target alone.
    blinding
        `B` (m, m) or (b, m, m), invertible.
    target
        `tau`, the target's place among the sources: int64, () or (b,).

    Attributes
    ----------
    weights
        `W = B diag(s) A`, shaped as `mixing`: the messages are `S_l = sum_i W_li H_i`.
    decoding
        `w = B^-T 1`, shaped as `signs`: `w^T W = e_tau^T`, so `sum_l w_l f(S_l) = f(H_tau)` for
        every linear `f`; for every affine one too if the decoding sums to one.

    Source: MixGuard, equations 14-19.
    """

    signs: Tensor
    mixing: Tensor
    blinding: Tensor
    target: Tensor
    weights: Tensor = field(init=False)
    decoding: Tensor = field(init=False)

    def __post_init__(self) -> None:
        weights = self.blinding @ (self.signs.unsqueeze(-1) * self.mixing)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "decoding", decoding_of(self.blinding))

    def __repr__(self) -> str:
        each = "" if self.samples is None else f", samples={self.samples}"
        return f"Secret(m={self.m}, k={self.k}{each})"

    @property
    def m(self) -> int:
        """Number of messages."""
        return self.mixing.shape[-2]

    @property
    def k(self) -> int:
        """Number of sources: the target and k - 1 supports."""
        return self.mixing.shape[-1]

    @property
    def samples(self) -> int | None:
        """Number of samples with their own secret; None if the batch shares one."""
        return self.mixing.shape[0] if self.mixing.ndim == 3 else None

    @property
    def distortion(self) -> Tensor:
        """How far messages point away from the target: `sum_l |w_l| (1 - cos_l) / |sum_l w_l|`.

        `cos_l` is the cosine of message l with the target, assuming sources that are orthogonal
        and of equal norm. A trunk that normalises its input (BERT, with layer norms after sums)
        sees only directions, and decoding sums its errors with weights `w_l`. Float64, () or (b,).
        """
        target_weights = self.weights.gather(
            -1, self.target[..., None, None].expand(*self.signs.shape, 1)
        )
        cosine = target_weights.squeeze(-1) / self.weights.norm(dim=-1)
        distorted: Tensor = (self.decoding.abs() * (1 - cosine)).sum(-1)
        return distorted / self.decoding.sum(-1).abs()

    @property
    def leak(self) -> Tensor:
        """|cos| with the target of the best single message, or of the messages' plain sum.

        Assumes sources that are orthogonal and of equal norm; `measured_leak` measures actual
        ones. Float64, () or (b,).
        """
        weights = torch.cat([self.weights, self.weights.sum(-2, keepdim=True)], dim=-2)
        target_weights = weights.gather(
            -1, self.target[..., None, None].expand(*weights.shape[:-1], 1)
        )
        cosines: Tensor = target_weights.squeeze(-1).abs() / weights.norm(dim=-1)
        return cosines.amax(-1)

    @property
    def amplification(self) -> Tensor:
        """`sum_l |w_l|`, the factor by which decoding amplifies independent errors of messages.

        At least 1 if the decoding sums to one. Float64, () or (b,).
        """
        return self.decoding.abs().sum(-1)

    def of(self, sample: int | Tensor) -> Secret:
        """Return the secret of one sample, or those of several (int64, (n,))."""
        return Secret(
            self.signs[sample], self.mixing[sample], self.blinding[sample], self.target[sample]
        )

    @staticmethod
    def join(secrets: Sequence[Secret]) -> Secret:
        """Return the secrets of several samples as one, in order."""
        return Secret(
            torch.cat([one.signs for one in secrets]),
            torch.cat([one.mixing for one in secrets]),
            torch.cat([one.blinding for one in secrets]),
            torch.cat([one.target for one in secrets]),
        )

    def arrange(self, target: Tensor, supports: Tensor) -> Tensor:
        """Put the target at its secret place among the supports.

        Parameters
        ----------
        target, supports
            (b, ...) and (k - 1, b, ...): token ids, masks or hidden states.

        Returns
        -------
        (k, b, ...) of the same dtype, the supports in their order.
        """
        self._check("supports", supports, self.k - 1)
        place = self._places(target)
        slots = torch.arange(self.k, device=target.device).unsqueeze(-1)
        order = slots - (slots > place).long()  # supports after the target move one place on
        sources = _pick(supports, order.clamp(max=self.k - 2))
        is_target = (slots == place).reshape(self.k, -1, *[1] * (target.ndim - 1))
        return torch.where(is_target, target, sources)

    def target_of(self, sources: Tensor) -> Tensor:
        """Return the target's part (b, ...) of a tensor over the k sources (k, b, ...)."""
        self._check("sources", sources, self.k)
        return _pick(sources, self._places(sources[0]).unsqueeze(0))[0]

    def encode(self, sources: Tensor) -> Tensor:
        """Mix sources into messages, inside the autograd graph.

        Parameters
        ----------
        sources
            `H` (k, b, T, d), floating; the target at its place (`arrange`).

        Returns
        -------
        `S` (m, b, T, d), of the same dtype and device; summed in float32 or better.

        Raises
        ------
        ValueError
            If the number of sources, or of samples with their own secret, does not fit.

        Source: MixGuard, equations 16 and 17.
        """
        self._check("sources", sources, self.k)
        return _combine(self.weights, sources)

    def decode(self, outputs: Tensor) -> Tensor:
        """Return the target's part `sum_l w_l G_l` of the trunk's outputs, inside the graph.

        The gradient of message l is thus `w_l` times the decoded target's.

        Parameters
        ----------
        outputs
            `G` (m, b, T, d), the trunk's answer to each message.

        Returns
        -------
        `h^` (b, T, d), of the same dtype and device; summed in float32 or better.

        Raises
        ------
        ValueError
            If the number of messages, or of samples with their own secret, does not fit.

        Source: MixGuard, equations 18 and 19.
        """
        self._check("outputs", outputs, self.m)
        return _combine(self.decoding.unsqueeze(-2), outputs)[0]

    def decode_sources(self, outputs: Tensor) -> Tensor:
        """Decode every source, not only the target: exact if the trunk is linear.

        The target's row is `decode`'s own; the supports' are those of the pseudo-inverse of `W`.

        Parameters
        ----------
        outputs
            `G` (m, b, T, d).

        Returns
        -------
        (k, b, T, d), of the same dtype and device, inside the graph.

        Raises
        ------
        ValueError
            If m < k: m messages cannot determine k sources.

        Source: none; the extension `gradients = "all-sources"`.
        """
        self._check("outputs", outputs, self.m)
        return _combine(self.source_decoding, outputs)

    @property
    def source_decoding(self) -> Tensor:
        """`R` (k, m) or (b, k, m) with `R W = I`: the decoding rows of `decode_sources`.

        Raises
        ------
        ValueError
            If m < k.
        """
        if self.m < self.k:
            raise ValueError(
                f"{self.k} sources cannot be decoded from {counted(self.m, 'message')}; "
                "all-sources gradients need m >= k"
            )
        is_target = torch.arange(self.k) == self.target.unsqueeze(-1)
        rows = torch.linalg.pinv(self.weights)
        return torch.where(is_target.unsqueeze(-1), self.decoding.unsqueeze(-2), rows)

    def _check(self, subject: str, tensor: Tensor, count: int) -> None:
        if tensor.ndim < 2 or tensor.shape[0] != count:
            raise ValueError(
                f"{subject} have shape {tuple(tensor.shape)}; this secret (m={self.m}, k={self.k}) "
                f"needs ({count}, b, ...)"
            )
        if self.samples not in (None, tensor.shape[1]):
            raise ValueError(
                f"{subject} have {counted(tensor.shape[1], 'sample')}; the secrets are for "
                f"{self.samples}"
            )

    def _places(self, batch: Tensor) -> Tensor:
        """Return tau for each sample of a batch (b, ...): int64 (b,)."""
        return self.target.to(batch.device).expand(batch.shape[0])


def decoding_of(blinding: Tensor) -> Tensor:
    """Return `B^-T 1`, (..., m), of blinding matrices (..., m, m)."""
    ones = torch.ones(*blinding.shape[:-1], 1, dtype=blinding.dtype)
    decoding: Tensor = torch.linalg.solve(blinding.mT, ones).squeeze(-1)
    return decoding


def _combine(matrix: Tensor, stacked: Tensor) -> Tensor:
    """Apply (n, j), or (b, n, j), to the first axis of (j, b, ...)."""
    exact = torch.promote_types(stacked.dtype, torch.float32)
    rule = "nj,jb...->nb..." if matrix.ndim == 2 else "bnj,jb...->nb..."
    mixed = torch.einsum(rule, matrix.to(stacked.device, exact), stacked.to(exact))
    return mixed.to(stacked.dtype)


def _pick(stacked: Tensor, order: Tensor) -> Tensor:
    """Select from (j, b, ...) the entries `order` (n, b), per sample: (n, b, ...)."""
    return stacked[order, torch.arange(stacked.shape[1], device=stacked.device)]
