"""Images that were mixed with others of their batch: the batch is solved before it is read."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.batch_ring import BatchRing
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.linear_decoder import LinearDecoder
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.hiding import NaiveMix

PICTURES = 255
"""Public images, at most, whose median is taken: an odd number, so that it can be solved."""


class SolveBatch(Attack):
    """Solves each release for the smashed data of its images, which `linear-decoder` then reads.

    It applies where clients mix each image of a batch with the next one (`NaiveMix`): the server
    has all messages of a batch, in its order, and knows lam (see `BatchRing`). A batch of odd size,
    or with another lam than 0.5, is solved exactly. Otherwise one direction is missing; it is
    chosen so that most smashed data are the median of public images'. The reader is fitted to
    public images that were mixed and solved alike.
    """

    name: ClassVar[str] = "solve-batch"
    goal: ClassVar[Goal] = "images"
    needs: ClassVar[frozenset[str]] = LinearDecoder.needs
    settings: ClassVar[tuple[Mapping[str, Any], ...]] = LinearDecoder.settings
    source: ClassVar[str] = "ours"

    def check(self, view: View) -> None:
        """Raise NotApplicable unless clients mix the images of a batch, and the view has all."""
        super().check(view)
        if not view.knowledge.mixes_batch:
            raise NotApplicable(
                f"{view.knowledge.method} does not mix the images of a batch with each other, so "
                "there is no batch to solve"
            )

    def learn(self, view: View, public: Pictures | None) -> None:
        """Fit the reader to solved batches of public images."""
        assert public is not None, "`fit` refuses without public data"
        self._usual = _median_states(view.knowledge, public)
        self._reader = LinearDecoder(**self.setting)
        self._reader.fit(self._solved(view), public, self.budget, seed=self.seed)

    def run(self, view: View) -> Guess:
        """Solve all releases, and read them."""
        return self._reader.run(self._solved(view))

    def _solved(self, view: View) -> View:
        """Return a view as if clients sent what the server makes of their messages."""
        knowledge, lowers = view.knowledge, view.knowledge.lowers
        ring = _ring(knowledge)
        solved: nn.Module | dict[int, nn.Module] | None = None
        if isinstance(lowers, Mapping):
            solved = {c: _Solved(lower, ring, self._usual) for c, lower in lowers.items()}
        elif lowers is not None:
            solved = _Solved(lowers, ring, self._usual)
        return replace(
            view,
            knowledge=replace(knowledge, lowers=solved),
            releases=[
                replace(release, smashed=_states(release.smashed, ring, self._usual))
                for release in view.releases
            ],
        )


class _Solved(nn.Module):
    """A lower segment that mixes its images, and what a server makes of its output."""

    def __init__(self, lower: nn.Module, ring: BatchRing, usual: Tensor) -> None:
        super().__init__()
        self.lower, self.ring, self.usual = lower, ring, usual

    def forward(self, images: Tensor) -> Tensor:
        messages: Tensor = self.lower(images)
        return _states(messages, self.ring, self.usual)


def _states(messages: Tensor, ring: BatchRing, usual: Tensor) -> Tensor:
    """Return the smashed data (b, T, d) behind messages, of their dtype and device."""
    return ring.settle(ring.solve(messages), usual).to(messages)


def _ring(knowledge: Knowledge) -> BatchRing:
    lam = knowledge.options.get("lam")
    return BatchRing(NaiveMix().lam if lam is None else float(lam))


@torch.no_grad()
def _median_states(knowledge: Knowledge, public: Pictures) -> Tensor:
    """Return the median of public images' smashed data, place by place: float64 (T, d).

    An odd number of images is solved exactly.
    """
    pictures = public.fitted(knowledge.image_shape)
    lowers = knowledge.lowers
    lower = next(iter(lowers.values())) if isinstance(lowers, Mapping) else lowers
    assert lower is not None
    odd = min(PICTURES, len(pictures) - (len(pictures) + 1) % 2)
    messages = copy.deepcopy(lower).eval()(knowledge.normalise(pictures.images[:odd].float()))
    return _ring(knowledge).solve(messages).median(0).values
