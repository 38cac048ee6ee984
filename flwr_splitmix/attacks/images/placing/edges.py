"""Frozen edges that shuffle patches: their stages, and the inverse of those behind the shuffle."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.segments.vision.patch_shuffle import PatchShuffle

ROWS = 64
"""Images that pass through an edge at once, and that its inverse is checked on."""

DAMPINGS = (1.0, 0.5, 0.25)
"""Steps of the fixed point that are tried on public images, largest first."""

MAX_ROUNDS = 200
CONVERGED_CHANGE = 1e-8
"""A fixed point ends when its tokens change by less than this fraction of their spread."""

MAX_ROUNDING_ERROR = 1e-3
"""Largest error of tokens, as a fraction of their spread, that still counts as rounding."""


@dataclass
class ShuffledEdge:
    """A lower segment taken apart at its shuffle.

    Parameters
    ----------
    known
        The adversary's knowledge.
    before, after
        Stages in front of the shuffle, and behind it; in float64, in evaluation mode.
    shuffle
        The shuffle between them.
    device
        Where the stages compute.
    """

    known: Knowledge
    before: Sequence[nn.Module]
    shuffle: PatchShuffle
    after: Sequence[nn.Module]
    device: torch.device
    _dampings: list[float | None] = field(default_factory=list)

    @classmethod
    def of(cls, knowledge: Knowledge, device: torch.device) -> ShuffledEdge:
        """Take apart the lower segment that all clients have.

        Raises
        ------
        NotApplicable
            If no stage of it shuffles, or clients have different ones.
        """
        lowers = knowledge.lowers
        segments = list(lowers.values()) if isinstance(lowers, Mapping) else [lowers]
        first = segments[0]
        stages = list(first.children()) if isinstance(first, nn.Sequential) else []
        at = [place for place, stage in enumerate(stages) if isinstance(stage, PatchShuffle)]
        if len(at) != 1:
            raise NotApplicable(
                f"the lower segments of {knowledge.method} do not shuffle patches at a frozen "
                "edge, so there is no shuffle to undo"
            )
        if not all(_same_weights(first, other) for other in segments[1:]):
            raise NotApplicable(
                f"the lower segments of {knowledge.method} have different weights, so they do "
                "not share a frozen edge"
            )
        place = torch.device("cpu") if device.type == "mps" else device  # which has no float64
        parts = [copy.deepcopy(s).to(place, torch.float64).eval() for s in stages]
        shuffle = parts[at[0]]
        assert isinstance(shuffle, PatchShuffle)
        return cls(knowledge, parts[: at[0]], shuffle, parts[at[0] + 1 :], place)

    def within_images(self) -> ShuffledEdge:
        """Return the same edge with a shuffle that exchanges no patches between images."""
        return replace(self, shuffle=PatchShuffle())

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens (b, N, w) of images (b, C, H, W) in their places: float64, CPU."""
        return torch.cat([self._embedded(part).cpu() for part in torch.split(images, ROWS)])

    def _embedded(self, images: Tensor) -> Tensor:
        tokens = self.known.normalise(images.double()).to(self.device)
        for stage in self.before:
            tokens = stage(tokens)
        return tokens

    @torch.no_grad()
    def learn_to_undo(self, view: View, public: Pictures, seed: int) -> None:
        """Find out on public images how each stage behind the shuffle is undone.

        Raises
        ------
        NotApplicable
            If one cannot be undone, or if what releases of public images become is not their
            shuffled tokens.
        """
        sample = public.images[:ROWS]
        tokens = self.embed(sample).to(self.device)
        for stage in self.after:
            following = stage(tokens)
            self._dampings.append(self._damping(stage, tokens, following))
            tokens = following
        self._check(view, public, seed)

    def _damping(self, stage: nn.Module, tokens: Tensor, following: Tensor) -> float | None:
        """Return the damping of the fixed point; None if the stage only adds prefix tokens."""
        prefix = self.known.geometry.prefix
        if following.shape != tokens.shape:
            patch_tokens = following[:, prefix:]
            if patch_tokens.shape == tokens.shape and bool((patch_tokens == tokens).all()):
                return None
        else:
            for damping in DAMPINGS:
                if near(_solved(stage, following, damping), tokens):
                    return damping
        raise NotApplicable(
            f"a stage behind the shuffle of {self.known.method} ({type(stage).__name__}) cannot be "
            "undone by a fixed point: on public images it does not come back to their tokens"
        )

    def _check(self, view: View, public: Pictures, seed: int) -> None:
        drawn = public.take(slice(0, ROWS))
        releases = self.known.simulate(
            drawn.images, drawn.labels, np.random.default_rng(seed), adversary=view.adversary
        )
        for release in releases[:4]:
            assert release.origin is not None, "a simulated release knows where its rows are from"
            tokens, order = self.undo(release.smashed), release.origin.order
            embedded = self.embed(drawn.images[release.origin.sources[:, 0]]).flatten(0, 1)
            if order is None or not near(
                tokens.flatten(0, 1), embedded[from_where(order).flatten()]
            ):
                raise NotApplicable(
                    f"what the adversary {view.adversary!r} gets on {self.known.method} is not the "
                    "shuffled tokens of single images, so there is no shuffle to undo"
                )

    @torch.no_grad()
    def undo(self, smashed: Tensor) -> Tensor:
        """Return the tokens (b, N, w) behind smashed data, in their slots: float64, CPU."""
        return torch.cat([self._undone(part).cpu() for part in torch.split(smashed, ROWS)])

    def _undone(self, smashed: Tensor) -> Tensor:
        tokens = smashed.to(self.device).double()
        for stage, damping in zip(reversed(self.after), reversed(self._dampings), strict=True):
            if damping is None:
                tokens = tokens[:, self.known.geometry.prefix :]
            else:
                tokens = _solved(stage, tokens, damping)
        return tokens.nan_to_num()


def from_where(order: Tensor) -> Tensor:
    """Return the patch in each slot, patches numbered through the batch; see `Origin.order`."""
    b, n = order.shape
    return order if int(order.max()) >= n else order + n * torch.arange(b)[:, None]


def _solved(stage: nn.Module, outputs: Tensor, damping: float) -> Tensor:
    """Return tokens that a stage maps to these outputs, if its fixed point converges."""
    tokens, spread = outputs.clone(), float(outputs.std()) or 1.0
    for _ in range(MAX_ROUNDS):
        step = outputs - stage(tokens)
        tokens += damping * step
        largest = float(step.abs().max()) / spread
        if not CONVERGED_CHANGE < largest < 1e6:  # converged, or it never will
            break
    return tokens


def near(tokens: Tensor, expected: Tensor) -> bool:
    """Whether tokens are those expected, up to rounding."""
    if tokens.shape != expected.shape:
        return False
    return float((tokens - expected).abs().max()) <= MAX_ROUNDING_ERROR * float(expected.std())


def _same_weights(first: nn.Module | None, other: nn.Module | None) -> bool:
    assert first is not None
    assert other is not None
    weights, other_weights = first.state_dict(), other.state_dict()
    return weights.keys() == other_weights.keys() and all(
        torch.equal(weights[k], other_weights[k]) for k in weights
    )
