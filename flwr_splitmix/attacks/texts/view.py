"""Views of texts, what a server has of a U-shaped client's texts; and attacks on them."""

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
from flwr_splitmix.segments.language.layouts.layout import Task

__all__ = [
    "PublicRelease",
    "PublicTexts",
    "TextAttack",
    "TextGuess",
    "TextKnowledge",
    "TextReading",
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
    "public releases": "no public texts as clients that calibrate send them, mixed and plain",
}
"""The possible needs of attacks on texts, and the wording for a view that lacks one."""

PublicTexts = Sequence[Tensor]
"""An attacker's own texts: int64 (t,) each, starting with the beginning token, if there is one."""


@dataclass(frozen=True)
class TextRelease:
    """A server's record of one text of one step.

    Parameters
    ----------
    messages
        (m, T, d): what the client sent, up to the mask's last token.
    outputs
        (m, T, d): the trunk's outputs for it; None if the step was not finished.
    gradients
        (m, T, d): the loss's gradient at each output, as returned by the client.
    words
        Number of predicted words in all texts of the step, including secret tokens, according to
        the masks; None for this text's only.
    texts
        Number of texts in the step, according to the masks.
    batch
        (m, b, T', d): what the client sent of all texts of the step, in their order; None if that
        was only this one.
    place
        Position of the text in it.
    """

    messages: Tensor
    outputs: Tensor | None = None
    gradients: Tensor | None = None
    words: int | None = None
    texts: int = 1
    batch: Tensor | None = field(default=None, repr=False)
    place: int = 0


@dataclass(frozen=True)
class PublicRelease:
    """A server's record of a public text that a client calibrated on.

    Parameters
    ----------
    messages
        (m, T, d): sent like private texts.
    states
        (t, d): the same text's hidden states, sent plain, including secret tokens.
    """

    messages: Tensor
    states: Tensor


@dataclass(frozen=True)
class TextKnowledge:
    """An adversary's knowledge: the method, its options, the model as far as it is not private.

    Parameters
    ----------
    method, options
        Name of the method, and the options it was created with.
    base
        All parts: the server's own trunk as it has become; head and tail as they are averaged, or,
        if they stay with their clients, with their weights before fine-tuning.
    begin
        The token that begins every text; None if there is none.
    task
        The clients' task, whatever `base` was made for.
    client
        Makes a client's half of the method, with its own draws, given public texts to draw
        supports from: what an attacker that knows the method can simulate. None if it knows too
        little.
    batch_size
        Texts per client and step.
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
            If the adversary does not have it.
        """
        if self.base is None:
            raise NotApplicable(f"the adversary has {TEXT_NEEDS['base model']}")
        return self.base


@dataclass(frozen=True)
class TextView(AnyView):
    """Everything a named adversary has; it gives no access to the truth.

    Parameters
    ----------
    adversary, releases, knowledge
        The adversary, what it received of private texts, and what it knows.
    public_releases
        The releases of public texts that it received, oldest first.
    """

    wording_of_missing: ClassVar[Mapping[str, str]] = TEXT_NEEDS

    adversary: Adversary
    releases: Sequence[TextRelease]
    knowledge: TextKnowledge
    public_releases: Sequence[PublicRelease] = ()

    @property
    def available(self) -> frozenset[str]:
        """The entries of `TEXT_NEEDS` that this view has."""
        base = self.knowledge.base
        entries = {
            "base model": base is not None,
            "decoder": base is not None and base.kind == "decoder",
            "gradients": any(r.gradients is not None for r in self.releases),
            "outputs": any(r.outputs is not None for r in self.releases),
            "several messages": any(len(r.messages) > 1 for r in self.releases),
            "word labels": self.knowledge.task == "generation",
            "method": self.knowledge.client is not None,
            "public releases": bool(self.public_releases),
        }
        return frozenset(name for name, is_present in entries.items() if is_present)


@dataclass(frozen=True)
class TextGuess:
    """A guess at one text.

    Parameters
    ----------
    release
        Position of its release in the view.
    ids
        int64 (T,): a token at each place.
    confidence
        The attack's own confidence; higher is more certain.
    way
        The source of the reading: "message 1", "mean", "direction 1", ...
    """

    release: int
    ids: Tensor
    confidence: float
    way: str


TextReading = tuple[Tensor, float, str]
"""Tokens, confidence and way of a `TextGuess`."""


class TextAttack(FittedAttack[TextView, PublicTexts]):
    """An attack on texts: fitted on public texts, run on a view.

    Its `needs` are entries of `TEXT_NEEDS`.

    Attributes
    ----------
    slow
        Whether reading a text takes long: then no more are read once the budget is spent.
    """

    public_data = "texts"
    slow: ClassVar[bool] = True

    def run(self, view: TextView) -> list[TextGuess]:
        """Guess the texts behind the releases of a view, one after another.

        A text may have several guesses. Once the budget is spent, slow attacks make no guesses for
        the remaining texts.
        """
        guesses = []
        for number, release in enumerate(view.releases):
            if number and self.slow and self.budget.must_end():
                break
            guesses += [TextGuess(number, *reading) for reading in self.readings(release, view)]
            self.budget.progress(self.name, number + 1, len(view.releases))
        return guesses

    @abstractmethod
    def readings(self, release: TextRelease, view: TextView) -> Iterable[TextReading]:
        """Read one release of a view: yield tokens, the attack's own confidence, and the way."""


def readings_of(messages: Tensor) -> dict[str, Tensor]:
    """Return inputs for an attack on one message, from m messages (m, T, d): each, and the mean.

    A single message has no separate mean. The order is that of the messages.
    """
    if len(messages) == 1:
        return {"message 1": messages[0]}
    ways = {f"message {i + 1}": message for i, message in enumerate(messages)}
    return ways | {"mean": messages.mean(0)}


@torch.no_grad()
def head_states(parts: LanguageParts, ids: Tensor) -> Tensor:
    """Return the base head's hidden states of one text (T,): (T, d)."""
    assert parts.head is not None
    states: Tensor = parts.head(ids.unsqueeze(0))[0]
    return states
