"""The training shared by attacks: AdamW on a one-cycle schedule, until the budget or user stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.networks.example import Example
from flwr_splitmix.seeding import seeded_draws

BATCH = 64
"""Rows per step."""

AT_ONCE = 256
"""Rows per batch through a trained network."""


class Reader(nn.Module):
    """A network that reads tokens, scaled to about 1, and a mask, if known, as one more channel.

    Parameters
    ----------
    net
        Takes (b, prefix + N, d), or with a mask (b, prefix + N, d + 1).
    first
        Determines the scale of tokens, and whether masks are known.
    """

    def __init__(self, net: nn.Module, first: Example) -> None:
        super().__init__()
        self.net = net
        self.masked = first.mask is not None
        self.scale = 1 / max(float(first.tokens.square().mean().sqrt()), 1e-12)

    def forward(self, tokens: Tensor, mask: Tensor | None) -> Any:
        """Return the network's output."""
        inputs = tokens * self.scale
        if self.masked:
            flag = inputs.new_ones(inputs.shape[:2])
            if mask is not None:
                flag[:, flag.shape[1] - mask.shape[1] :] = mask.to(inputs)
            inputs = torch.cat([inputs, flag[..., None]], dim=2)
        return self.net(inputs)

    @torch.no_grad()
    def read(self, tokens: Tensor, mask: Tensor | None, device: torch.device) -> Tensor:
        """Read any number of rows in evaluation mode; the result is on the CPU."""
        self.eval()
        starts = range(0, len(tokens), AT_ONCE)
        return torch.cat(
            [
                self(
                    tokens[i : i + AT_ONCE].to(device),
                    None if mask is None else mask[i : i + AT_ONCE].to(device),
                ).cpu()
                for i in starts
            ]
        )


def train_reader(
    make: Callable[[int], nn.Module],
    examples: Iterator[Example],
    loss: Callable[[Any, Example], Tensor],
    *,
    steps: int,
    lr: float,
    seed: int,
    budget: Budget,
    loop: str,
) -> Reader:
    """Train a network on releases of public images.

    Parameters
    ----------
    make
        From the width of its input to the network, whose weights are determined by `seed`.
    examples
        One per step.
    loss
        From the network's output for an example, and the example, to a scalar.
    steps, lr
        Number of steps of the one-cycle schedule, and its highest learning rate.
    loop
        Name of the loop in progress reports.

    Returns
    -------
    The network in evaluation mode; if stopped, in its current state.
    """
    first = next(examples)
    width = first.tokens.shape[2] + (first.mask is not None)
    with seeded_draws(budget.device, seed):
        reader = Reader(make(width), first).to(budget.device)
    steps = steps if budget.iterations is None else min(steps, budget.iterations)
    optimizer = torch.optim.AdamW(reader.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=max(steps, 2))
    for step in budget.steps(steps, loop):
        example = (first if step == 0 else next(examples)).to(budget.device)
        optimizer.zero_grad()
        loss(reader(example.tokens, example.mask), example).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return reader.eval()


def image_loss(painted: Tensor, example: Example) -> Tensor:
    """Return the mean squared error of images (b, C, H, W), over all members of a mixture."""
    return (painted[:, None] - example.images).square().mean()
