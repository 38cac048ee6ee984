"""Checks of the results of methods that a user writes for a U-shaped client."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.hiding import SentBatch
from flwr_splitmix.storage import plain_number
from flwr_splitmix.words import counted, described

_OF_DTYPES = re.compile(r"Found dtype|expected scalar type|same dtype|not implemented for")
"""Parts of torch's errors for a loss of two dtypes, or of one that it does not take."""


def checked_sent(sent: object) -> SentBatch:
    """Return what `obfuscate` returned.

    Raises
    ------
    ClientError
        If it is not a `SentBatch`, or not one of messages (b, T, d) with a mask.
    """
    if not isinstance(sent, SentBatch):
        raise ClientError(
            f"obfuscate returns {described(sent)}; expected a SentBatch(messages, mask, batch)"
        )
    messages: object = sent.messages
    if not _are_tensors(messages) or any(message.dim() != 3 for message in sent.messages):
        raise ClientError(
            f"obfuscate returns a SentBatch with messages {described(messages)}; expected a list "
            "of tensors (examples, tokens, width)"
        )
    mask: object = sent.mask
    if not isinstance(mask, Tensor):
        raise ClientError(
            f"obfuscate returns a SentBatch with mask {described(mask)}; expected a tensor "
            "(examples, tokens) of 0 and 1"
        )
    return sent


def checked_hidden(hidden: object, width: int) -> Tensor:
    """Return what `recover` returned; raises ClientError if it is not a tensor of this width."""
    if not isinstance(hidden, Tensor) or hidden.shape[-1:] != (width,):
        raise ClientError(
            f"recover returns {described(hidden)}; expected one tensor (examples, tokens, "
            f"{width}), such as outputs[0]"
        )
    return hidden


def checked_logits(logits: object, examples: int, *, own_scores: bool) -> Tensor:
    """Return what `logits` returned.

    Parameters
    ----------
    own_scores
        Whether scores of a user's own get it, which may take any form of it.

    Raises
    ------
    ClientError
        If it has no row for each example, or not the form that `TextScores` takes.
    """
    rows = isinstance(logits, Tensor) and logits.dim() > 0 and len(logits) == examples
    if not isinstance(logits, Tensor) or not rows or not (own_scores or logits.dim() in (2, 3)):
        expected = f"({examples}, classes) or ({examples}, tokens, vocabulary)"
        if own_scores:
            expected = f"whose first dimension is the examples, {examples}"
        raise ClientError(f"logits returns {described(logits)}; expected a tensor {expected}")
    return logits


@contextmanager
def labels_explained(labels: Tensor, dtype: torch.dtype) -> Iterator[None]:
    """Name the labels' dtype if a loss, or its backward pass, fails on dtypes.

    Parameters
    ----------
    labels
        As the loss gets them.
    dtype
        In which the tail computes.

    Raises
    ------
    ClientError
        In place of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        if labels.dtype == dtype or not _OF_DTYPES.search(str(error)):
            raise
        raise ClientError(
            f"loss fails on dtypes: labels are {_short(labels.dtype)}, and the tail computes in "
            f"{_short(dtype)}; convert them in it, sent.batch.labels.to(hidden.dtype)"
        ) from error


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def checked_loss(loss: object) -> Tensor:
    """Return what `loss` returned; raises ClientError if it is not a scalar with a gradient."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ClientError(
            f"loss returns {described(loss)}; expected a tensor of one number, the mean over the "
            "examples"
        )
    if not loss.requires_grad:
        raise ClientError(
            "loss returns a tensor without a gradient; it must compute it from hidden, and not "
            "detach it or run under torch.no_grad"
        )
    return loss


def checked_gradient(gradient: Tensor | None) -> Tensor:
    """Return the gradient at `hidden`; raises ClientError if the loss does not depend on it."""
    if gradient is None:
        raise ClientError("loss returns a tensor that does not depend on hidden, as it must")
    return gradient


def checked_perturbed(perturbed: object, gradient: Tensor) -> Tensor:
    """Return what `perturb` returned; raises ClientError if it does not have its shape."""
    if not isinstance(perturbed, Tensor) or perturbed.shape != gradient.shape:
        raise ClientError(
            f"perturb returns {described(perturbed)}; expected a tensor of the gradient's shape "
            f"{tuple(gradient.shape)}"
        )
    return perturbed


def gradients_through(hidden: Tensor, outputs: Sequence[Tensor], gradient: Tensor) -> list[Tensor]:
    """Return the gradient at each of the trunk's outputs, given that at what `recover` returned.

    It is zero at an output that `recover` ignores, such as that of a decoy.

    Raises
    ------
    ClientError
        If `recover` ignores all of them: the trunk would learn nothing.
    """
    at_outputs: Sequence[Tensor | None] = ()
    if hidden.requires_grad:
        at_outputs = torch.autograd.grad(hidden, outputs, gradient, allow_unused=True)
    if all(each is None for each in at_outputs):
        raise ClientError(
            "recover returns a tensor that has no gradient with respect to outputs; it must "
            "compute it from them, and not detach them or run under torch.no_grad, or the trunk "
            "learns nothing"
        )
    return [
        torch.zeros_like(output) if each is None else each
        for output, each in zip(outputs, at_outputs, strict=True)
    ]


def checked_returned(returned: object, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return what `returned` returned; raises ClientError unless it has a gradient per message."""
    shapes = [gradient.shape for gradient in gradients]
    if (
        not isinstance(returned, Sequence)
        or not _are_tensors(returned)
        or [gradient.shape for gradient in returned] != shapes
    ):
        raise ClientError(
            f"returned returns {described(returned)}; expected a list of "
            f"{counted(len(gradients), 'tensor')} {tuple(gradients[0].shape)}, one for each message"
        )
    return list(returned)


def check_counted(examples: int, size: int, size_in_words: str) -> None:
    """Refuse scores that count something else than the examples that they were given.

    Parameters
    ----------
    examples, size
        How many they count, and how many there are.
    size_in_words
        How many there are, in words for the message.

    Raises
    ------
    ClientError
        If these numbers differ.
    """
    if examples != size:
        raise ClientError(
            f"its scores count {examples} examples, {size_in_words}: `add` must add the length of "
            "the batch to `examples`, and may count pixels, tokens or labels under another name"
        )


def plain_scores(scores: object) -> dict[str, int | float | None]:
    """Return what the `result` of scores returned, as plain numbers; None for what is not a number.

    The server leaves such a score out, with a warning.

    Raises
    ------
    ClientError
        If it is not a dictionary.
    """
    if not isinstance(scores, Mapping):
        raise ClientError(
            f"result of the scores returns {described(scores)}; expected a dict of means by name, "
            "with 'loss' and 'accuracy'"
        )
    return {str(name): plain_number(value) for name, value in scores.items()}


def _are_tensors(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(isinstance(item, Tensor) for item in value)
    )
