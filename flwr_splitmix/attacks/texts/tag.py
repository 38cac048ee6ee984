"""TAG: soft labels whose gradient at the tail is the one that the client returned."""

from __future__ import annotations

from typing import ClassVar

import torch

from flwr_splitmix.attacks.texts.gradient_matching import (
    GRADIENT_NEEDS,
    match_labels,
    targets_of,
    text_of_labels,
)
from flwr_splitmix.attacks.texts.view import TextAttack, TextGuess, TextView

STEPS = {"smoke": 30, "cpu": 100, "paper": 600}


class Tag(TextAttack):
    """Find the words whose loss behind the base tail has the gradient that came back.

    A model that says next words has its text as labels, so that reading labels reads the text.
    Each message's output and gradient are matched, and their means.
    """

    name = "tag"
    needs: ClassVar[frozenset[str]] = GRADIENT_NEEDS
    source = "TAG (Deng et al. 2021), on labels behind a split as in BiSR (CCS 2024)"

    def run(self, view: TextView) -> list[TextGuess]:
        """Guess each text from every message's gradient, and from the mean."""
        known, guesses = view.knowledge, []
        for number, release in enumerate(view.releases):
            if number and self.budget.over:
                break
            for way, target in targets_of(release, known):
                first = torch.zeros_like(target.said)
                steps = STEPS[self.budget.scale]
                logits, off = match_labels(target, first, self.budget, steps=steps, name=self.name)
                ids = text_of_labels(logits.argmax(-1), known.begin)
                guesses.append(TextGuess(number, ids, -off, way))
        return guesses
