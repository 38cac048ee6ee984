"""The taking apart of weighted sums of tokens, if the members' embeddings differ and are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import torch
from torch import Tensor

from flwr_splitmix.attacks.images.embedding.subspaces import Subspace

MAX_COMBINATIONS = 1000
"""Most groups of clients that are tried."""

CHOICE_TOKENS = 256
"""Tokens of a release that are used to choose a group."""


@dataclass(frozen=True)
class Unmixed:
    """The members of a release, and their tokens.

    Parameters
    ----------
    members
        Their clients.
    ratios
        Their mixing ratios, about 1 together; near 0 for one that is not there.
    tokens
        float64 (k, b, N, d), not weighted. Those of a member that is not there mean nothing.
    """

    members: tuple[int, ...]
    ratios: Tensor
    tokens: Tensor


class Unmixer:
    """Solves for the tokens behind sums, as least squares over the possible groups of clients.

    A sum of k tokens has d numbers, and each member's tokens have as many unknown ones as its
    subspace has directions: with fewer unknowns than numbers, only the right group explains it.
    The ratios are the same in all tokens of a release.

    Parameters
    ----------
    subspaces
        By client.
    k
        Members of a mixture.
    """

    def __init__(self, subspaces: Mapping[int, Subspace], k: int) -> None:
        self._subspaces = subspaces
        self._groups = [_Group.of(c, subspaces) for c in combinations(sorted(subspaces), k)]

    @classmethod
    def of(cls, subspaces: Mapping[int, Subspace], k: int) -> Unmixer | None:
        """Return an unmixer; None if there are too few numbers, or too many groups."""
        if len(subspaces) < k or comb(len(subspaces), k) > MAX_COMBINATIONS:
            return None
        ranks = sorted(each.directions.shape[1] for each in subspaces.values())
        width = next(iter(subspaces.values())).directions.shape[0]
        return cls(subspaces, k) if sum(ranks[-k:]) < width else None

    def __call__(self, tokens: Tensor) -> Unmixed:
        """Take the rows of one release apart, (b, N, d)."""
        whole = tokens.double().cpu()
        some = whole[: max(1, CHOICE_TOKENS // whole.shape[1])]
        group = min(self._groups, key=lambda each: each.unexplained(some))
        return group.unmixed(whole)


@dataclass(frozen=True)
class _Group:
    members: tuple[int, ...]
    subspaces: Sequence[Subspace]
    basis: Tensor
    """(d, r), orthonormal: all members' directions."""

    @classmethod
    def of(cls, members: tuple[int, ...], subspaces: Mapping[int, Subspace]) -> _Group:
        member_subspaces = [subspaces[client] for client in members]
        basis, _ = torch.linalg.qr(torch.cat([each.directions for each in member_subspaces], dim=1))
        return cls(members, member_subspaces, basis)

    def unexplained(self, tokens: Tensor) -> float:
        """Return the mean square of the part that the group does not explain."""
        beyond, apart = self._beyond(tokens)
        ratios = self._ratios(beyond, apart)
        unexplained = beyond - torch.einsum("m,mnd->nd", ratios[:-1], apart)
        return float(unexplained.square().mean())

    def unmixed(self, tokens: Tensor) -> Unmixed:
        """Solve for ratios and tokens; the ratio of the last member is the rest."""
        ratios = self._ratios(*self._beyond(tokens))
        points = torch.stack([each.points for each in self.subspaces])
        within = tokens - torch.einsum("m,mnd->nd", ratios, points)
        directions = torch.cat([each.directions for each in self.subspaces], dim=1)
        coordinates = within @ torch.linalg.pinv(directions).T
        parts = coordinates.split([each.directions.shape[1] for each in self.subspaces], dim=2)
        alone = [
            each.points + part @ each.directions.T / ratio.clamp_min(1e-6)
            for each, part, ratio in zip(self.subspaces, parts, ratios, strict=True)
        ]
        return Unmixed(self.members, ratios, torch.stack(alone))

    def _beyond(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unexplained parts of tokens, and of each point less the last one."""
        last = self.subspaces[-1].points
        points = torch.stack([each.points - last for each in self.subspaces[:-1]])
        return self._outside(tokens - last), self._outside(points)

    def _outside(self, tokens: Tensor) -> Tensor:
        return tokens - tokens @ self.basis @ self.basis.T

    @staticmethod
    def _ratios(beyond: Tensor, apart: Tensor) -> Tensor:
        others = torch.linalg.lstsq(
            apart.flatten(1).T, beyond.mean(0).flatten()[:, None], driver="gelsd"
        ).solution[:, 0]
        ratios = torch.cat([others, 1 - others.sum(0, keepdim=True)]).clamp(0, 1)
        return ratios / ratios.sum()
