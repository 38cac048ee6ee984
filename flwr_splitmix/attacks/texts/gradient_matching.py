"""What attacks by gradients share: which labels' gradient at the tail is the one that came back."""

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
"""What of a view gradients can be matched with."""

LEARNING_RATE = 0.09
SQUARES = 0.85
"""beta: the part of squares in the distance; the rest is of absolute values."""


class TailGradient:
    """The loss's gradient at the trunk's output, as the base tail has it for soft labels.

    The server has the trunk's output itself. A word's place is predicted at the place before it,
    so that a text of T words has T - 1 labels.

    Parameters
    ----------
    parts
        With a tail that says next words.
    hidden
        (T, d), T > 1: the trunk's output of one message.
    returned
        (T, d): the gradient that came back.
    words
        How many words the loss is a mean over. A gradient's size is what tells one word for
        certain from a mixture of several, which may have the same direction.
    """

    def __init__(self, parts: LanguageParts, hidden: Tensor, returned: Tensor, words: int) -> None:
        assert parts.tail is not None
        self.hidden = hidden.detach().float().clone().requires_grad_()
        self.returned = returned.detach().float()
        self.words = words
        with sdpa_kernel(SDPBackend.MATH):  # others have no second derivative
            self.logits = parts.tail.eval()(self.hidden[None])[0, :-1]
        self.said = self.logits.detach().softmax(-1)

    def of(self, labels: Tensor) -> Tensor:
        """Return the gradient (T, d) of the cross-entropy with soft labels (T - 1, V)."""
        error = (self.said - labels) / self.words
        (made,) = torch.autograd.grad(
            self.logits,
            self.hidden,
            error,
            create_graph=labels.requires_grad,
            retain_graph=True,
        )
        return made

    def distance(self, labels: Tensor) -> Tensor:
        """Return how far the labels' gradient is from the one that came back, a scalar.

        Units are those of the returned gradient's root mean square.
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
    """Move the logits of soft labels until their gradient is the one that came back.

    Parameters
    ----------
    logits
        (T - 1, V), where it begins.
    temperature
        Of the labels' softmax.
    between
        Is given, behind every step, how many there were and the logits without a graph; what it
        returns takes their place.

    Returns
    -------
    The logits, and the distance at their end.
    """
    own = logits.detach().float().clone().requires_grad_()
    optimizer = torch.optim.AdamW([own], lr=LEARNING_RATE)
    for step in budget.steps(steps, name):
        loss = target.distance((own / temperature).softmax(-1))
        (own.grad,) = torch.autograd.grad(loss, own)
        optimizer.step()
        if between is not None and (other := between(step + 1, own.detach())) is not None:
            with torch.no_grad():
                own.copy_(other)
    reached = own.detach()
    return reached, float(target.distance((reached / temperature).softmax(-1)).detach())


def targets_of(release: TextRelease, known: TextKnowledge) -> Iterator[tuple[str, TailGradient]]:
    """Give what each message's labels must have the gradient of, and what their mean must.

    The gradient is in each case the sum of all messages': MixGuard's decoding weights, by which
    they differ, sum to one. Where one message carries it, its sign is unknown: both are tried, and
    its size is only an upper bound. Words are counted by what a server is told: the masks of a
    step, and how many secret tokens the method adds, which carry no loss.

    Nothing of a release whose step was not finished, or of a text of one word.
    """
    if release.outputs is None or release.gradients is None or release.outputs.shape[1] < 2:
        return
    returned = release.gradients.sum(0)
    words = release.words or release.outputs.shape[1] - 1
    words -= int(known.options.get("secret_tokens", 0)) * known.batch_size
    signs = {"": 1.0}
    if known.options.get("gradients") == "one-message":
        signs[", other sign"] = -1.0
    for way, output in readings_of(release.outputs).items():
        for said, sign in signs.items():
            target = TailGradient(known.parts(), output, sign * returned, max(1, words))
            yield way + said, target


def text_of_labels(labels: Tensor, begin: int | None) -> Tensor:
    """Return the text (T,) whose words from the second on are these labels (T - 1,).

    No place predicts the first one: it is the beginning, or else guessed to be the second.
    """
    first = labels[:1] if begin is None else labels.new_tensor([begin])
    return torch.cat([first, labels])
