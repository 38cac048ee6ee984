"""Shadow models: upper segments that an attacker trains to learn the traces of training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.knowledge import Knowledge, Lowers
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Release
from flwr_splitmix.seeding import seeded_draws

_BATCH = 64


def fresh_like(segment: nn.Module, seed: int) -> nn.Module:
    """Return a segment of the same architecture with freshly drawn weights."""
    fresh = copy.deepcopy(segment)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn: set[nn.Parameter] = set()
        for module in fresh.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
                drawn.update(module.parameters(recurse=False))
        for parameter in fresh.parameters():
            if parameter not in drawn:  # tokens and positions, which are in no layer
                nn.init.trunc_normal_(parameter, std=0.02)
            parameter.requires_grad_(True)
    return fresh


def soft_targets(release: Release, classes: int) -> Tensor:
    """Return the labels of a release, hard or soft, as probabilities (b, L)."""
    assert release.labels is not None
    if release.labels.ndim == 2:
        return release.labels.float()
    return F.one_hot(release.labels, classes).float()


def losses(upper: nn.Module, release: Release, classes: int) -> Tensor:
    """Return the loss (b,) of an upper segment on a release, with the release's labels.

    The segment is left in evaluation mode.
    """
    upper.eval()
    device = next(upper.parameters()).device
    targets = soft_targets(release, classes).to(device)
    parts = []
    with torch.inference_mode():
        for rows, row_targets in zip(
            torch.split(release.smashed, _BATCH), torch.split(targets, _BATCH), strict=True
        ):
            logits = upper(rows.to(device))
            parts.append(-(row_targets * F.log_softmax(logits, 1)).sum(1).cpu())
    return torch.cat(parts)


@dataclass(frozen=True)
class Shadow:
    """An upper segment trained on some public images, and the lower segments used with it.

    Parameters
    ----------
    upper, lowers
        The segments.
    members, others
        Public images that it was trained on, and as many others.
    """

    upper: nn.Module
    lowers: Lowers
    members: Pictures
    others: Pictures


def train_shadow(
    knowledge: Knowledge,
    members: Pictures,
    others: Pictures,
    *,
    epochs: int,
    budget: Budget,
    seed: int,
) -> Shadow:
    """Train an upper segment by the attacked method on an attacker's own images.

    The lower segment is the victims' if the adversary has it, otherwise one with fresh weights. It
    is not trained, as nearly everything a model memorises is in its upper segment.

    Parameters
    ----------
    epochs
        Passes over `members`; masks, partners and noise are drawn anew in each.
    """
    assert knowledge.upper is not None
    lowers = knowledge.lowers or knowledge.own_lower(seed)
    upper = fresh_like(knowledge.upper, seed).to(budget.device).train()
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(upper.parameters(), lr=1e-3, weight_decay=0.05)
    with seeded_draws(budget.device, seed):  # of dropout
        for _ in budget.steps(epochs, "shadow model"):
            for release in knowledge.simulate(  # in another order each time
                members.images, members.labels, rng, lower=lowers, adversary="upper only"
            ):
                targets = soft_targets(release, knowledge.num_classes).to(budget.device)
                logits = upper(release.smashed.to(budget.device))
                loss = -(targets * F.log_softmax(logits, 1)).sum(1).mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
    return Shadow(upper.eval(), lowers, members, others)


def train_shadows(
    knowledge: Knowledge,
    public: Pictures,
    *,
    count: int,
    images: int,
    epochs: int,
    budget: Budget,
    seed: int,
) -> Sequence[Shadow]:
    """Train several shadow models, each on a different sample of the public images.

    Parameters
    ----------
    images
        Images that each model is trained on, at most half of the public ones.
    """
    each = min(images, len(public) // 2)
    shadows = []
    for number in range(count):
        chosen, _ = public.divided(2 * each, seed + 1000 * number)
        members, others = chosen.divided(each, seed + 1000 * number + 1)
        shadows.append(
            train_shadow(
                knowledge,
                members,
                others,
                epochs=epochs,
                budget=budget,
                seed=seed + 1000 * number + 2,
            )
        )
        if budget.must_end():
            break
    return shadows
