"""The patches behind tokens with noise of known variance, each with the covariance of its error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.embedding.inverse import LinearInverse, fit_inverse
from flwr_splitmix.attacks.images.embedding.noise import has_noise, without_noise
from flwr_splitmix.attacks.images.linear import Linear, pairs, rows_to_fit, segments_of
from flwr_splitmix.attacks.images.networks.example import Query, public_examples
from flwr_splitmix.attacks.pictures import Pictures

PRIOR_PRECISION = 1e-4
"""Precision of a pixel's value before its token is seen: so little that it changes nothing."""


class Errors(NamedTuple):
    """The Gaussian errors of patches that were read, each independent of the others.

    Parameters
    ----------
    kinds
        int64 (b, N): the kind of each patch's error.
    covariances
        float64 (K, P, P): of each kind.
    """

    kinds: Tensor
    covariances: Tensor


class PatchReading(NamedTuple):
    """Patches as they were read.

    Parameters
    ----------
    patches
        float64 (b, N, P).
    errors
        Their errors; None if they are exact, or nothing is known of these.
    """

    patches: Tensor
    errors: Errors | None = None


Read = Callable[[Query], PatchReading]
"""From a query of b rows to its patches."""


@dataclass(frozen=True)
class TokenModel:
    """A client's tokens before the noise: linear in their patches, plus an error.

    A patch embedding has no error. Clipping and blocks make some, taken as Gaussian and as
    independent of patches.

    Parameters
    ----------
    tokens_of
        The linear function, from patches (b, N, P) to tokens (b, N, d).
    axes, strengths
        float64 (d, d) and (d,): eigenvectors and eigenvalues of the error's covariance.
    """

    tokens_of: LinearInverse
    axes: Tensor
    strengths: Tensor

    @classmethod
    def fit(cls, tokens: Tensor, patches: Tensor, is_held: Tensor) -> Self:
        """Fit tokens (n, N, d) without noise, and the patches (n, N, P) behind them.

        Parameters
        ----------
        is_held
            bool (n, N): the pairs to use.
        """
        tokens_of = fit_inverse(patches, tokens, is_held)
        residuals = (tokens.double().cpu() - tokens_of(patches.double().cpu()))[is_held.cpu()]
        strengths, axes = torch.linalg.eigh(residuals.T @ residuals / max(1, len(residuals)))
        return cls(tokens_of, axes, strengths.clamp_min(0))

    def read(self, tokens: Tensor, variances: Tensor) -> PatchReading:
        """Return the patches behind tokens, each by least squares weighted by the noise.

        Parameters
        ----------
        tokens
            (b, N, d), with noise.
        variances
            float64 (b, N): of the noise in each number of a token; infinite where none came, of
            which grey is read, with the greatest error.
        """
        grey = torch.full_like(self.tokens_of.weights[:, 0], 0.5)
        turned = self.tokens_of.weights @ self.axes
        apart = (tokens.double().cpu() - self.tokens_of(grey)) @ self.axes
        patches = apart.new_empty(*apart.shape[:2], len(grey))
        levels, kinds = torch.unique(variances, return_inverse=True)
        errors = []
        for kind, level in enumerate(levels):
            weighed = turned / (self.strengths + level)
            precision = weighed @ turned.T + PRIOR_PRECISION * torch.eye(
                len(grey), dtype=grey.dtype
            )
            errors.append(torch.cholesky_inverse(torch.linalg.cholesky(precision)))
            same_kind = kinds == kind
            patches[same_kind] = grey + apart[same_kind] @ weighed.T @ errors[-1]
        return PatchReading(patches, Errors(kinds, torch.stack(errors)))


class NoisyReader:
    """Reads patches that were sent with noise, by the lower segments that the adversary has.

    Parameters
    ----------
    models
        By client; under None for clients that are not there.
    prefix
        Prefix tokens.
    """

    def __init__(self, models: Mapping[int | None, TokenModel], prefix: int) -> None:
        self._models = models
        self._prefix = prefix

    @classmethod
    def fit(cls, view: View, public: Pictures, budget: Budget, seed: int) -> Self:
        """Fit each client's tokens to public images that are released without noise."""
        knowledge = view.knowledge
        quiet = replace(view, knowledge=replace(knowledge, mixer=without_noise(knowledge.mixer)))
        grid = knowledge.patch_grid
        models: dict[int | None, TokenModel] = {}
        for number, (owner, lower) in enumerate(segments_of(knowledge).items()):
            if number and budget.must_end():
                break
            rows = rows_to_fit(knowledge, public)
            example = next(public_examples(quiet, public, rows, seed, lower=lower))
            behind, has_patch = pairs(example, grid)
            tokens = example.tokens[:, knowledge.geometry.prefix :]
            models[owner] = TokenModel.fit(tokens, behind, has_patch)
        return cls(models, knowledge.geometry.prefix)

    def __call__(self, query: Query) -> PatchReading:
        """Read the patches of a query whose noise is known."""
        assert query.noise is not None, "a query about a release with noise says how much"
        model = self._models.get(query.member, self._models[None])
        return model.read(query.tokens[:, self._prefix :], query.noise)


def reader_of(view: View, public: Pictures, linear: Linear, budget: Budget, seed: int) -> Read:
    """Return a reader of patches: with their errors if there is noise, else as `linear` reads them.

    Parameters
    ----------
    linear
        The fitted inverse.
    """
    if has_noise(view.knowledge.mixer):
        return NoisyReader.fit(view, public, budget, seed)
    return exact_reader(view, linear)


def exact_reader(view: View, linear: Linear) -> Read:
    """Return a reader that reads patches as `linear` does, without their errors."""
    return lambda query: PatchReading(linear.patches(query, view).clamp(0, 1))
