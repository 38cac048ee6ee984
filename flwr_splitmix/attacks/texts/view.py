"""Views of texts: what a server has of a U-shaped client's texts, and attacks on that."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.fitted import AnyView, FittedAttack, NotApplicable
from flwr_splitmix.attacks.release import Adversary
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.segments.language import LanguageParts
from flwr_splitmix.segments.language.layout import Task

__all__ = [
    "PublicRelease",
    "PublicTexts",
    "Reading",
    "TextAttack",
    "TextGuess",
    "TextKnowledge",
    "TextRelease",
    "TextView",
    "readings_of",
]

TEXT_NEEDS: dict[str, str] = {
    "base model": "no base weights of head and tail",
    "decoder": "no model that reads from left to right",
    "gradients": "no gradients",
    "outputs": "no outputs of its trunk",
    "several messages": "one message of a text only",
    "word labels": "no gradients of words, as its clients' labels are classes",
    "method": "no client half of the method, to simulate it",
    "public data": "no public texts",
    "public releases": "no public texts that its clients sent both mixed and plain",
}
"""What attacks on texts may need, and what is said of a view that lacks it."""

PublicTexts = Sequence[Tensor]
"""An attacker's own texts: int64 (t,) each, each with the token that begins texts, if any does."""


@dataclass(frozen=True)
class TextRelease:
    """What a server has of one text of one step.

    Parameters
    ----------
    messages
        (m, T, d): what the client sent, up to the mask's last token.
    outputs
        (m, T, d): what the trunk made of it; None where the step was not finished.
    gradients
        (m, T, d): of the loss at each output, as the client returned it.
    words
        Predicted words of all texts of the step, secret tokens among them, as the masks say;
        None: those of this text alone.
    """

    messages: Tensor
    outputs: Tensor | None = None
    gradients: Tensor | None = None
    words: int | None = None


@dataclass(frozen=True)
class PublicRelease:
    """What a server has of a public text that a client calibrated on.

    Parameters
    ----------
    messages
        (m, T, d): as private texts are sent.
    states
        (t, d): the same text's hidden states, sent plain; secret tokens are among them.
    """

    messages: Tensor
    states: Tensor


@dataclass(frozen=True)
class TextKnowledge:
    """What is public by assumption: the method, its options, the pretrained model.

    Parameters
    ----------
    method, options
        Name of the method, and what it was made with.
    base
        All parts with the weights before fine-tuning. The trunk's are the server's own.
    begin
        The token that begins every text; None where there is none.
    task
        What the clients learn, whatever `base` was made for.
    client
        Makes a client's half of the method, with draws of its own, given public texts to draw
        supports from: what an attacker who knows the method can simulate. None: it knows too
        little of it.
    batch_size
        Texts of a client's step.
    """

    method: str
    options: Mapping[str, Any]
    base: LanguageParts | None = field(repr=False)
    begin: int | None = None
    task: Task = "generation"
    client: Callable[[Sequence[Tensor]], Hiding] | None = field(default=None, repr=False)
    batch_size: int = 1

    def parts(self) -> LanguageParts:
        """Return the base model.

        Raises
        ------
        NotApplicable
            If the adversary has none.
        """
        if self.base is None:
            raise NotApplicable(f"the adversary has {TEXT_NEEDS['base model']}")
        return self.base


@dataclass(frozen=True)
class TextView(AnyView):
    """All that a named adversary has; nothing of the truth can be reached from it.

    Parameters
    ----------
    adversary, releases, knowledge
        Who it is, what it received of private texts, what it knows.
    public_releases
        What it received of public ones, oldest first.
    """

    lacks: ClassVar[Mapping[str, str]] = TEXT_NEEDS

    adversary: Adversary
    releases: Sequence[TextRelease]
    knowledge: TextKnowledge
    public_releases: Sequence[PublicRelease] = ()

    @property
    def has(self) -> frozenset[str]:
        """What attacks may need, of `TEXT_NEEDS`, as far as a view can have it."""
        base = self.knowledge.base
        held = {
            "base model": base is not None,
            "decoder": base is not None and base.kind == "decoder",
            "gradients": any(r.gradients is not None for r in self.releases),
            "outputs": any(r.outputs is not None for r in self.releases),
            "several messages": any(len(r.messages) > 1 for r in self.releases),
            "word labels": self.knowledge.task == "generation",
            "method": self.knowledge.client is not None,
            "public releases": bool(self.public_releases),
        }
        return frozenset(name for name, here in held.items() if here)


@dataclass(frozen=True)
class TextGuess:
    """A guess at one text.

    Parameters
    ----------
    release
        The position of its release in the view.
    ids
        int64 (T,): a token at each place.
    confidence
        The attack's own, the higher the surer.
    way
        What it was read from: "message 1", "mean", "direction 1", ...
    """

    release: int
    ids: Tensor
    confidence: float
    way: str


Reading = tuple[Tensor, float, str]
"""Tokens, confidence and way of a `TextGuess`."""


class TextAttack(FittedAttack[TextView, PublicTexts]):
    """An attack on texts: fitted on public texts, run on a view.

    What a view must have is of `TEXT_NEEDS`.

    Attributes
    ----------
    slow
        Whether to read a text takes long: then no more are read when the budget is spent.
    """

    public_data = "texts"
    slow: ClassVar[bool] = True

    def run(self, view: TextView) -> list[TextGuess]:
        """Guess the texts behind the releases of a view, one after the other.

        A text may have several guesses. When the budget is spent, the texts that are left have
        none.
        """
        guesses = []
        for number, release in enumerate(view.releases):
            if number and self.slow and self.budget.over:
                break
            guesses += [TextGuess(number, *reading) for reading in self.readings(release, view)]
            self.budget.progress(self.name, number + 1, len(view.releases))
        return guesses

    @abstractmethod
    def readings(self, release: TextRelease, view: TextView) -> Iterable[Reading]:
        """Read one release of a view: tokens, the attack's own confidence, and the way."""


def readings_of(messages: Tensor) -> dict[str, Tensor]:
    """Return what of m messages (m, T, d) an attack on one message is tried on: each, and the mean.

    Only one where there is only one; their order is the messages'.
    """
    if len(messages) == 1:
        return {"message 1": messages[0]}
    ways = {f"message {i + 1}": message for i, message in enumerate(messages)}
    return ways | {"mean": messages.mean(0)}


@torch.no_grad()
def head_states(parts: LanguageParts, ids: Tensor) -> Tensor:
    """Return what the base head makes of one text (T,): (T, d)."""
    assert parts.head is not None
    states: Tensor = parts.head(ids.unsqueeze(0))[0]
    return states
