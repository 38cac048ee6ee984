"""Membership scores: a trained network's, RMIA's, and LiRA's."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MembershipNet(nn.Sequential):
    """Three fully connected layers on what the server saw of a sample: features to one logit.

    Source: DP-CutMixSL, section 6.
    """

    def __init__(self, features: int, hidden: int = 64) -> None:
        super().__init__(
            nn.Linear(features, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )


def train_membership(
    features: Tensor, members: Tensor, *, epochs: int, seed: int, batch: int = 64
) -> nn.Module:
    """Train a network to distinguish members from others; the result standardises its own inputs.

    Parameters
    ----------
    features
        float (n, f), from shadow models.
    members
        bool (n,).

    Returns
    -------
    nn.Module
        Features (m, f) to logits (m,).
    """
    mean, spread = features.mean(0), features.std(0).clamp_min(1e-6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = MembershipNet(features.shape[1])
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    inputs, targets = (features - mean) / spread, members.to(features.dtype)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(inputs), generator=generator), batch):
            loss = nn.functional.binary_cross_entropy_with_logits(
                net(inputs[rows]).squeeze(1), targets[rows]
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return _Standardised(net.eval(), mean, spread)


class _Standardised(nn.Module):
    def __init__(self, net: nn.Module, mean: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.net, self.mean, self.spread = net, mean, spread

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.net((features - self.mean) / self.spread)
        return logits.squeeze(1)


def rmia(
    target: Tensor,
    references: Tensor,
    population: Tensor,
    population_references: Tensor,
    *,
    gamma: float = 1.0,
    a: float = 0.3,
) -> Tensor:
    """Return the fraction of a population that each candidate's likelihood ratio dominates.

    Parameters
    ----------
    target
        float (n,): the target model's probability of each candidate's label.
    references
        (r, n): the same for reference models, none of which trained on the candidates.
    population, population_references
        (z,) and (r, z): likewise for examples that are not members.
    gamma
        Factor by which a candidate's ratio must exceed one of the population.
    a
        Offline correction: from the mean over models without the candidate, the mean over all
        models is estimated as ((1 + a) mean + (1 - a)) / 2.

    Returns
    -------
    Tensor
        float64 (n,) in 0..1, higher for likelier members.

    Source: Zarifzadeh, Liu, Shokri, "Low-cost high-power membership inference attacks", equations
    2 and 11.
    """

    def ratio(probability: Tensor, others: Tensor) -> Tensor:
        outside = others.double().mean(0)
        everywhere = ((1 + a) * outside + (1 - a)) / 2
        return probability.double() / everywhere.clamp_min(1e-12)

    candidates = ratio(target, references)
    ordered = ratio(population, population_references).sort().values
    return torch.searchsorted(ordered, candidates / gamma, right=True).double() / len(ordered)


def lira(target: Tensor, references: Tensor) -> Tensor:
    """Return how far each candidate's confidence is above that of models without it.

    The offline form: each candidate's confidences over reference models are assumed Gaussian, and
    the score is the target's standard score among them.

    Parameters
    ----------
    target
        (n,) logits of confidence, see `confidence_logit`.
    references
        (r, n), r >= 2, the same for models that did not train on the candidates.

    Returns
    -------
    Tensor
        float64 (n,).

    Raises
    ------
    ValueError
        If there are fewer than two such models.

    Source: Carlini et al., "Membership inference attacks from first principles", section IV-B.
    """
    if references.ndim != 2 or len(references) < 2:
        raise ValueError(
            f"references have shape {tuple(references.shape)}; they must be of at least two models"
        )
    others = references.double()
    # With few models, one variance for all candidates is more stable than one each.
    spread = others.std(0) if len(others) >= 32 else others.std(0).square().mean().sqrt()
    return (target.double() - others.mean(0)) / torch.clamp(spread, min=1e-6)


def confidence_logit(probability: Tensor) -> Tensor:
    """Return log(p / (1 - p)), float64 of the same shape, bounded if p is 0 or 1."""
    p = probability.double().clamp(1e-12, 1 - 1e-12)
    return torch.log(p) - torch.log1p(-p)
