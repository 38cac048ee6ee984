"""Gradient matching: find labels whose gradient at the tail equals the returned one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.texts.view import TextKnowledge, TextRelease, readings_of
from flwr_splitmix.segments.language import LanguageParts

__all__ = ["GRADIENT_NEEDS", "TailGradient", "match_labels", "targets_of", "text_of_labels"]

GRADIENT_NEEDS = frozenset({"base model", "decoder", "outputs", "gradients", "word labels"})
"""The needs of gradient matching."""

LEARNING_RATE = 0.09
SQUARES = 0.85
"""beta: weight of squares in the distance; absolute values have the rest."""


class TailGradient:
    """The loss's gradient at the trunk's output, as a function of soft labels, by the base tail.

    The server has the trunk's output itself. A word is predicted at the place before it, so a text
    of T words has T - 1 labels.

    Parameters
    ----------
    parts
        A model whose tail predicts next words.
    hidden
        (T, d), T > 1: the trunk's output of one message.
    returned
        (T, d): the returned gradient.
    words
        Number of words that the loss averages over. The gradient's size distinguishes a single
        word from a mixture of several, which may have the same direction.
    """

    def __init__(self, parts: LanguageParts, hidden: Tensor, returned: Tensor, words: int) -> None:
        assert parts.tail is not None
        self.hidden = hidden.detach().float().clone().requires_grad_()
        self.returned = returned.detach().float()
        self.words = words
        with sdpa_kernel(SDPBackend.MATH):  # other kernels have no second derivative
            self.logits = parts.tail.eval()(self.hidden[None])[0, :-1]
        self.said = self.logits.detach().softmax(-1)

    def of(self, labels: Tensor) -> Tensor:
        """Return the gradient (T, d) of the cross-entropy with soft labels (T - 1, V)."""
        error = (self.said - labels) / self.words
        (gradient,) = torch.autograd.grad(
            self.logits,
            self.hidden,
            error,
            create_graph=labels.requires_grad,
            retain_graph=True,
        )
        return gradient

    def distance(self, labels: Tensor) -> Tensor:
        """Return the distance between the labels' gradient and the returned one, a scalar.

        The unit is the returned gradient's root mean square.
        """
        size = self.returned.square().mean().sqrt().clamp(min=1e-30)
        off = (self.of(labels) - self.returned) / size
        return SQUARES * off.square().mean() + (1 - SQUARES) * off.abs().mean()


def match_labels(
    target: TailGradient,
    logits: Tensor,
    budget: Budget,
    *,
    steps: int,
    name: str,
    temperature: float = 1.0,
    between: Callable[[int, Tensor], Tensor | None] | None = None,
) -> tuple[Tensor, float]:
    """Optimise the logits of soft labels until their gradient matches the returned one.

    Parameters
    ----------
    logits
        (T - 1, V), the initial values.
    temperature
        Temperature of the labels' softmax.
    between
        Called after every step with the number of steps and the detached logits; a result other
        than None replaces the logits.

    Returns
    -------
    The logits, and their final distance.
    """
    optimised = logits.detach().float().clone().requires_grad_()
    optimizer = torch.optim.AdamW([optimised], lr=LEARNING_RATE)
    for step in budget.steps(steps, name):
        loss = target.distance((optimised / temperature).softmax(-1))
        (optimised.grad,) = torch.autograd.grad(loss, optimised)
        optimizer.step()
        if between is not None and (other := between(step + 1, optimised.detach())) is not None:
            with torch.no_grad():
                optimised.copy_(other)
    reached = optimised.detach()
    return reached, float(target.distance((reached / temperature).softmax(-1)).detach())


def targets_of(
    release: TextRelease, knowledge: TextKnowledge
) -> Iterator[tuple[str, TailGradient]]:
    """Yield the gradient that labels must match, for each message and for the messages' mean.

    In each case it is the sum of all messages' gradients: they differ by MixGuard's decoding
    weights, which sum to one. If a single message carries the gradient, its sign is unknown, so
    both are tried, and its size is only an upper bound. Words are counted from what a server
    knows: the masks of a step, and the number of secret tokens, which carry no loss.

    Yields nothing for a release whose step was not finished, or for a text of one word.
    """
    if release.outputs is None or release.gradients is None or release.outputs.shape[1] < 2:
        return
    returned = release.gradients.sum(0)
    words = release.words or release.outputs.shape[1] - 1
    words -= int(knowledge.options.get("secret_tokens", 0)) * release.texts
    signs = {"": 1.0}
    if knowledge.options.get("gradients") == "one-message":
        signs[", other sign"] = -1.0
    for way, output in readings_of(release.outputs).items():
        for suffix, sign in signs.items():
            target = TailGradient(knowledge.parts(), output, sign * returned, max(1, words))
            yield way + suffix, target


def text_of_labels(labels: Tensor, begin: int | None) -> Tensor:
    """Return the text (T,) whose words from the second on are these labels (T - 1,).

    No place predicts the first word: it is `begin`, or else guessed to equal the second.
    """
    first = labels[:1] if begin is None else labels.new_tensor([begin])
    return torch.cat([first, labels])
