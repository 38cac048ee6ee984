"""TAG: soft labels whose gradient at the tail matches the one that the client returned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch

from flwr_splitmix.attacks.texts.gradient_matching import (
    GRADIENT_NEEDS,
    match_labels,
    targets_of,
    text_of_labels,
)
from flwr_splitmix.attacks.texts.view import TextAttack, TextReading, TextRelease, TextView

STEPS = {"smoke": 30, "cpu": 100, "paper": 600}


class Tag(TextAttack):
    """Find the words whose loss through the base tail has the returned gradient.

    The labels of a next-word model are its text, so reading the labels reads the text. The attack
    matches each message's output and gradient, and their means.
    """

    name = "tag"
    needs: ClassVar[frozenset[str]] = GRADIENT_NEEDS
    source = "TAG (Deng et al. 2021), on labels behind a split as in BiSR (CCS 2024)"

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read every message's gradient and their mean."""
        knowledge, steps = view.knowledge, STEPS[self.budget.scale]
        for way, target in targets_of(release, knowledge):
            first = torch.zeros_like(target.said)
            logits, off = match_labels(target, first, self.budget, steps=steps, name=self.name)
            yield text_of_labels(logits.argmax(-1), knowledge.begin), -off, way
