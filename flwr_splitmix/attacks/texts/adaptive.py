"""The adaptive attack: a network trained on simulated messages to read those of the method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.texts.releasing import Released, release_texts
from flwr_splitmix.attacks.texts.sip import EPOCHS, HELD_OUT, Example, train_inverter
from flwr_splitmix.attacks.texts.view import (
    PublicTexts,
    TextAttack,
    TextReading,
    TextRelease,
    TextView,
)
from flwr_splitmix.seeding import derive_seed, seeded_secrets

OFFLINE_EPOCHS = {"smoke": 1, "cpu": 6, "paper": 2 * EPOCHS["paper"]}
"""At scale "paper" twice SIP's: each epoch has other secrets."""


class Adaptive(TextAttack):
    """Run the method on public texts with the attacker's own secrets, and learn to invert it.

    A text's messages are read in two ways, by one network each: "joint", all of them
    concatenated, and "cancelled", their sum. With a single message, which may be noisy, both are
    the same, and one network learns to read through the noise.

    This is the offline attack; the online one is `AdaptiveOnline`.
    """

    name = "adaptive"
    needs: ClassVar[frozenset[str]] = frozenset({"base model", "method", "public data"})
    slow = False
    source = "MixGuard, equation 30 and Table V (offline)"

    def learn(self, view: TextView, public: PublicTexts | None) -> None:
        """Train the networks."""
        assert public is not None
        held_count = min(HELD_OUT, max(1, len(public) // 10))
        ways = ("joint", "cancelled") if "several messages" in view.available else ("joint",)
        self.inverters = {}
        for number, way in enumerate(ways):

            def draw(epoch: int, way: str = way) -> list[Example]:
                return self._examples(view, public[held_count:] or public, public, epoch, way)

            self.inverters[way] = train_inverter(
                self._examples(view, public[:held_count], public, -1, way),
                draw,
                self.budget.share(len(ways) - number),
                epochs=OFFLINE_EPOCHS[self.budget.scale],
                seed=self.seed,
                name=self.name,
            )

    def _examples(
        self, view: TextView, texts: PublicTexts, supports: PublicTexts, epoch: int, way: str
    ) -> list[Example]:
        """Release texts as a client would, and return the network's training examples."""
        knowledge = view.knowledge
        assert knowledge.client is not None
        seed = derive_seed(self.seed, "simulated secrets", epoch + 1)
        with torch.random.fork_rng(devices=[]), seeded_secrets():
            torch.manual_seed(seed)
            released = release_texts(
                knowledge.parts(),
                knowledge.client(supports),
                texts,
                batch_size=knowledge.batch_size,
                seed=seed,
            )
        return examples_of(released, way)

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read a text in both ways."""
        for way, inverter in self.inverters.items():
            yield *inverter.read(network_input(release.messages, way)), way


def network_input(messages: Tensor, way: str) -> Tensor:
    """Return a network's input for messages (m, T, d): (T, m d) if "joint", else their sum."""
    return messages.sum(0) if way == "cancelled" else messages.transpose(0, 1).flatten(1)


def examples_of(released: Released, way: str) -> list[Example]:
    """Return pairs of network input and words; -1 at places of secret tokens."""
    examples = []
    for release, origin in zip(released.releases, released.origins, strict=True):
        words = torch.full((release.messages.shape[1],), -1)
        words[origin.places] = origin.ids
        examples.append((network_input(release.messages, way), words))
    return examples
