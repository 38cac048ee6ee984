"""BiSR: a network's reading, optimised to match the returned gradient, then the message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.texts.gradient_matching import (
    match_labels,
    targets_of,
    text_of_labels,
)
from flwr_splitmix.attacks.texts.sip import Inverter, Sip
from flwr_splitmix.attacks.texts.view import TextReading, TextRelease, TextView, readings_of
from flwr_splitmix.segments.language import LanguageParts

TEMPERATURE = 1.2
BACKWARD = {"smoke": 20, "cpu": 30, "paper": 30}
"""Steps of matching the gradient."""

FORWARD = {"smoke": 30, "cpu": 200, "paper": 800}
"""Steps of matching the message."""

LEARNING_RATE = 0.005


class Bisr(Sip):
    """Read with SIP's network, then match the gradient, then the message through embeddings.

    If no gradient of words was returned (an unfinished step, or class labels), the second stage
    is left out.
    """

    name = "bisr"
    needs: ClassVar[frozenset[str]] = frozenset({"base model", "decoder", "public data"})
    source = "BiSR (Chen et al., CCS 2024)"

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read every message, and their mean, by each sign that a gradient may have."""
        knowledge = view.knowledge
        parts = knowledge.parts()
        targets = dict(targets_of(release, knowledge)) if "word labels" in view.available else {}
        for way, message in readings_of(release.messages).items():
            first = first_logits(self.inverter, message, parts.vocab_size)
            # A gradient of unknown sign has two targets: "message 1" and "message 1, other sign".
            signs = [target_name for target_name in targets if target_name.partition(",")[0] == way]
            for target_name in signs or [way]:
                logits = first.clone()
                if target_name in targets:
                    logits[1:], _ = match_labels(
                        targets[target_name],
                        logits[1:],
                        self.budget,
                        steps=BACKWARD[self.budget.scale],
                        name=self.name,
                        temperature=TEMPERATURE,
                    )
                ids, fit = self._forward(parts, message.detach().float(), logits)
                if knowledge.begin is not None:
                    ids = text_of_labels(ids[1:], knowledge.begin)
                yield ids, fit, target_name

    def _forward(
        self, parts: LanguageParts, message: Tensor, logits: Tensor
    ) -> tuple[Tensor, float]:
        """Optimise embeddings until the head maps them to the message; read the nearest words."""
        assert parts.head is not None
        table, places = embeddings(parts, len(message))
        word_vectors = ((logits / TEMPERATURE).softmax(-1) @ table).requires_grad_()
        optimizer = torch.optim.AdamW([word_vectors], lr=LEARNING_RATE)
        for _ in self.budget.steps(FORWARD[self.budget.scale], self.name):
            states = parts.head.stack((word_vectors + places)[None])[0]
            loss = (1 - F.cosine_similarity(states, message, dim=-1)).mean()
            (word_vectors.grad,) = torch.autograd.grad(loss, word_vectors)
            optimizer.step()
        cosines = F.normalize(word_vectors.detach(), dim=-1) @ F.normalize(table, dim=-1).T
        return cosines.argmax(-1), 1 - float(loss.detach())


@torch.no_grad()
def first_logits(inverter: Inverter, message: Tensor, words: int) -> Tensor:
    """Return the network's log-probabilities of all words (T, V); unknown words get the least."""
    inverter.eval()
    known_logits = inverter(message[None].float())[0].log_softmax(-1)
    logits: Tensor = known_logits.amin(-1, keepdim=True).repeat(1, words)
    logits[:, inverter.words] = known_logits
    return logits


@torch.no_grad()
def embeddings(parts: LanguageParts, length: int) -> tuple[Tensor, Tensor]:
    """Return each word's embedding at the first place (V, d), and what later places add (T, d)."""
    assert parts.head is not None
    words = torch.arange(parts.vocab_size)
    table: Tensor = parts.head.embedding(words[None], torch.zeros(1, 1, dtype=torch.int64))[0]
    places = torch.arange(length)[None]
    same = torch.zeros_like(places)
    added: Tensor = parts.head.embedding(same, places) - parts.head.embedding(same, same)
    return table.float(), added[0].float()
