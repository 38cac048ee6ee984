"""`simulate`: the lower segment is unknown, so the server trains one with similar outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.images.decoder import Decoder
from flwr_splitmix.attacks.images.networks.example import queries
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.labels import loss_on, target_loss, target_rows
from flwr_splitmix.seeding import seeded_draws

_STEPS = {"smoke": 4, "cpu": 200, "paper": 4000}
"""Training steps of the simulated segment, by scale."""

_TASK_EVERY = 4
_TASK_BATCH = 16
_BATCH = 64
_TOKENS = 512
"""Tokens of each side that are compared at once."""

_ROWS = 1024
"""Rows of the victims' releases kept for comparison."""


@dataclass(frozen=True)
class _Received:
    """Tokens that victims sent, and their slots: (n, d) and int64 (n,)."""

    tokens: Tensor
    slots: Tensor

    def some(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(self.tokens), (count,), generator=generator)
        return self.tokens[rows], self.slots[rows]


class Simulate(Attack):
    """Trains a lower segment whose smashed data look like the victims', then a decoder for it.

    The segment has the public architecture and fresh weights. It is trained on public images with
    three losses: a discriminator between its tokens and the victims', and their distance under
    kernels of several widths, both at the same slots; and, if the adversary has the upper segment,
    the task loss through it. The decoder is that of `decoder`, trained on the method's releases of
    public images with that segment.

    Source: SDAR (Zhu et al., NDSS 2025) and FORA (Xu et al., CVPR 2024), in the plain form that
    both share.
    """

    name = "simulate"
    goal: ClassVar[Goal] = "images"
    needs = frozenset({"smashed data", "public data"})
    source = "SDAR, FORA"

    def learn(self, view: View, public: Pictures | None) -> None:
        """Train the segment, then the decoder."""
        assert public is not None
        pictures = public.fitted(view.knowledge.image_shape)
        self.lower = self._train_lower(view, pictures)
        knowledge = replace(view.knowledge, lowers=self.lower, averaged=False)
        self.decoder = Decoder(**Decoder.settings[0])
        self.decoder.fit(replace(view, knowledge=knowledge), pictures, self.budget, seed=self.seed)

    def run(self, view: View) -> Guess:
        """Decode the victims' releases."""
        knowledge = replace(view.knowledge, lowers=self.lower, averaged=False)
        return self.decoder.run(replace(view, knowledge=knowledge))

    def _train_lower(self, view: View, public: Pictures) -> nn.Module:
        knowledge, device = view.knowledge, self.budget.device
        received = _collect_tokens(view)
        lower = knowledge.own_lower(self.seed).to(device).train()
        weights = [p for p in lower.parameters() if p.requires_grad]
        if not weights:  # a frozen edge: its initial state is all there is
            return lower.eval()
        with seeded_draws(device, self.seed):  # of weights, and of dropout
            judge = _Discriminator(received.tokens.shape[1], knowledge.geometry.patches).to(device)
            generator = torch.Generator().manual_seed(self.seed)
            ours = torch.optim.AdamW(weights, lr=1e-3)
            theirs = torch.optim.AdamW(judge.parameters(), lr=5e-4)
            upper = None if knowledge.upper is None else knowledge.upper.to(device).eval()
            own_loss = loss_on(knowledge.loss, device)
            for step in self.budget.steps(_STEPS[self.budget.scale], "simulated segment"):
                rows = torch.randint(len(public), (_BATCH,), generator=generator)
                smashed = lower(knowledge.normalise(public.images[rows]).to(device))
                real, slots = (part.to(device) for part in received.some(_TOKENS, generator))
                # Use the same slots on both sides, so that slots cannot distinguish them.
                which = torch.randint(_BATCH, slots.shape, generator=generator).to(device)
                simulated = smashed[which, knowledge.geometry.prefix + slots]
                verdicts = judge(real, slots), judge(simulated.detach(), slots)
                theirs.zero_grad()
                judge_loss = (F.softplus(-verdicts[0]) + F.softplus(verdicts[1])).mean()
                torch.autograd.backward(judge_loss)
                theirs.step()
                loss = 0.1 * F.softplus(-judge(simulated, slots)).mean() + _distance(
                    simulated, real
                )
                if upper is not None and step % _TASK_EVERY == 0:
                    logits = upper(smashed[:_TASK_BATCH])
                    labels = public.labels[rows[:_TASK_BATCH]].to(device)
                    targets = target_rows(labels, logits.shape[1], logits.dtype)
                    loss = loss + target_loss(
                        logits, targets, multi_label=knowledge.multi_label, loss=own_loss
                    )
                ours.zero_grad()
                torch.autograd.backward(loss)
                ours.step()
        return lower.eval().requires_grad_(False).cpu()


def _collect_tokens(view: View) -> _Received:
    """Collect the tokens received, divided by mixing weights if they are known."""
    prefix = view.knowledge.geometry.prefix
    tokens, slots, rows = [], [], 0
    for release in view.releases:
        for query in queries(release, view.knowledge):
            patch_tokens = query.tokens[:, prefix:].float()
            came = patch_tokens.abs().sum(2) > 0 if query.mask is None else query.mask
            tokens.append(patch_tokens[came])
            slots.append(came.nonzero()[:, 1])
            rows += len(patch_tokens)
        if rows >= _ROWS:
            break
    return _Received(torch.cat(tokens), torch.cat(slots))


class _Discriminator(nn.Module):
    """Tokens (n, d) with their slots to logits (n,), higher for a victim's tokens."""

    def __init__(self, width: int, slots: int, hidden: int = 128) -> None:
        super().__init__()
        self.enter = nn.Linear(width, hidden)
        self.slots = nn.Embedding(slots, hidden)
        self.leave = nn.Sequential(
            nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 1)
        )

    def forward(self, tokens: Tensor, slots: Tensor) -> Tensor:
        logits: Tensor = self.leave(self.enter(tokens) + self.slots(slots))
        return logits.squeeze(1)


def _distance(simulated: Tensor, real: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy under Gaussian kernels of several widths."""
    both = torch.cat([simulated, real])
    squared = torch.cdist(both, both).square()
    typical = squared.detach().mean().clamp_min(1e-12)
    kernel = torch.stack([torch.exp(-squared / (factor * typical)) for factor in (0.25, 1.0, 4.0)])
    n = len(simulated)
    inside = kernel[:, :n, :n].mean() + kernel[:, n:, n:].mean()
    return inside - 2 * kernel[:, :n, n:].mean()
