"""LAMP: TAG, with words reordered by a language model between steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.texts.gradient_matching import (
    GRADIENT_NEEDS,
    TailGradient,
    match_labels,
    targets_of,
    text_of_labels,
)
from flwr_splitmix.attacks.texts.view import (
    PublicTexts,
    TextAttack,
    TextReading,
    TextRelease,
    TextView,
)
from flwr_splitmix.segments.language import LanguageParts

STEPS = {"smoke": 30, "cpu": 150, "paper": 600}
TRIED_ORDERS = {"smoke": 10, "cpu": 100, "paper": 100}
"""Number of word orders tried each time, by scale."""

STEPS_BETWEEN_TRIALS = 30
"""Steps between two such trials; the last one is after the last step."""

FLUENCY = 0.2
"""Weight of the language model's loss relative to the gradient distance."""

_AT_ONCE = 20


class Lamp(TextAttack):
    """TAG that periodically reorders its words by a language model's loss and gradient distance.

    The language model is the pretrained model itself, which the attacker has.
    """

    name = "lamp"
    needs: ClassVar[frozenset[str]] = GRADIENT_NEEDS
    source = "LAMP (Balunović et al., NeurIPS 2022)"

    def learn(self, view: TextView, public: PublicTexts | None) -> None:
        """Seed the random generator."""
        self.generator = torch.Generator().manual_seed(self.seed)

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read every message's gradient, and the mean."""
        knowledge = view.knowledge
        for way, target in targets_of(release, knowledge):
            logits, off = match_labels(
                target,
                torch.zeros_like(target.said),
                self.budget,
                steps=STEPS[self.budget.scale],
                name=self.name,
                between=partial(self._reordered_logits, knowledge.parts(), knowledge.begin, target),
            )
            yield text_of_labels(logits.argmax(-1), knowledge.begin), -off, way

    def _reordered_logits(
        self,
        parts: LanguageParts,
        begin: int | None,
        target: TailGradient,
        step: int,
        logits: Tensor,
    ) -> Tensor | None:
        """Return the logits in the best of the tried orders; None between trials."""
        if step % STEPS_BETWEEN_TRIALS or len(logits) < 2:
            return None
        count = TRIED_ORDERS[self.budget.scale]
        orders = torch.stack(
            [torch.arange(len(logits)), *moves(len(logits), count, self.generator)]
        )
        words, labels = logits.argmax(-1), logits.softmax(-1)
        texts = torch.stack([text_of_labels(words[order], begin) for order in orders])
        fits = torch.stack([target.distance(labels[order]).detach() for order in orders])
        best = int((fits + FLUENCY * fluency(parts, texts)).argmin())
        return logits[orders[best]]


def moves(length: int, count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Draw `count` other orders of `length` > 1 places, int64 (length,) each.

    They alternate between four moves: swap two places, move one place, move a span, move a
    beginning to the end.
    """

    def below(most: int) -> int:
        return int(torch.randint(most, (1,), generator=generator))

    for number in range(count):
        order = list(range(length))
        if number % 4 == 0:
            one, other = below(length), below(length)
            order[one], order[other] = order[other], order[one]
        elif number % 4 == 3:
            end = 1 + below(length - 1)
            order = order[end:] + order[:end]
        else:
            start = below(length)
            end = start + 1 if number % 4 == 1 else start + 1 + below(length - start)
            span, rest = order[start:end], order[:start] + order[end:]
            place = below(len(rest) + 1)
            order = rest[:place] + span + rest[place:]
        yield torch.tensor(order)


@torch.no_grad()
def fluency(parts: LanguageParts, texts: Tensor) -> Tensor:
    """Return the base model's mean loss on the words of texts (n, T), from the second on: (n,)."""
    head, trunk, tail = parts.all_here()
    losses = []
    for some in torch.split(texts, _AT_ONCE):
        logits = tail(trunk(head(some)))[:, :-1]
        each = F.cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten(), reduction="none")
        losses.append(each.view(len(some), -1).mean(1))
    return torch.cat(losses)
