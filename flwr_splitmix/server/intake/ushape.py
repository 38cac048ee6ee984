"""The intake of the U shape: checks messages and gradients before the trunk, and scores."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.events import Messages
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.intake.checks import (
    NAME,
    NAME_RULE,
    UploadError,
    check_magnitude,
    check_number,
    check_tensor,
)
from flwr_splitmix.values import shown
from flwr_splitmix.words import counted, one_line

log = logging.getLogger("flwr.splitmix")

MAX_MESSAGES = 64
"""Most messages that a client may send for one batch."""

MORE_MESSAGES = 4
"""A client's messages for one batch may be this many times those of the median client."""

MAX_GROUPS = 4
"""Most groups of public texts that may travel with a batch."""

MAX_SCORE = 1e100
"""Bound on scores, so that their means cannot overflow."""

MAX_NAMED = 5
"""Most scores that one warning names."""


def read_messages(
    reply: Mapping[str, Any],
    width: int,
    dtype: torch.dtype,
    *,
    batch: int,
    min_length: int = 1,
    max_length: int | None = None,
) -> Messages:
    """Check the messages of one client.

    Parameters
    ----------
    width
        d of the trunk.
    batch
        Most examples that the client may send at once.
    min_length, max_length
        Fewest and most tokens that the trunk accepts; None for no limit.

    Raises
    ------
    UploadError
        If they are not a list of tensors (b, T, d) of the trunk's dtype with a mask (b, T) of 0
        and 1, or contain NaN, infinite or very large numbers.
    """
    hidden, mask = reply.get("messages"), reply.get("mask")
    if not isinstance(hidden, (list, tuple)) or not 1 <= len(hidden) <= MAX_MESSAGES:
        raise UploadError(f"sent no list of 1..{MAX_MESSAGES} messages")
    if not isinstance(mask, Tensor) or mask.dtype != torch.uint8 or mask.dim() != 2:
        raise UploadError("sent no mask (examples, tokens) of torch.uint8")
    examples, tokens = mask.shape
    if not 1 <= examples <= batch or not min_length <= tokens <= (max_length or tokens):
        lengths = f"{min_length}..{max_length or 'any'}"
        raise UploadError(
            f"sent {counted(examples, 'example')} of {counted(tokens, 'token')}; expected "
            f"1..{batch} examples of {max_length if max_length == min_length else lengths} tokens"
        )
    if int(mask.max()) > 1:
        raise UploadError("sent a mask with other numbers than 0 and 1")
    for tensor in hidden:
        check_tensor(tensor, (examples, tokens, width), dtype)
        check_magnitude(tensor)
    return Messages(list(hidden), mask)


def public_groups(reply: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the groups of public texts in a reply, each like a reply of `encode`.

    Raises
    ------
    UploadError
        If they are not a list of 1 to `MAX_GROUPS` groups.
    """
    groups = reply.get("public")
    if not isinstance(groups, (list, tuple)) or not 1 <= len(groups) <= MAX_GROUPS:
        raise UploadError(f"sent no list of 1..{MAX_GROUPS} groups of public texts")
    if not all(isinstance(group, Mapping) for group in groups):
        raise UploadError("sent public texts that are not groups of messages")
    return list(groups)


def read_gradients(reply: Mapping[str, Any], sent: Messages) -> list[Tensor]:
    """Check the gradients that a client returns for its messages; none if only its tail learns.

    Raises
    ------
    UploadError
        If there is neither no gradient nor one per message, of its shape and dtype, or if one is
        not finite.
    """
    gradients = reply.get("gradients")
    if not isinstance(gradients, (list, tuple)) or len(gradients) not in (0, len(sent.hidden)):
        raise UploadError(f"returned no list of {counted(len(sent.hidden), 'gradient')}")
    like = sent.hidden[0]
    for tensor in gradients:
        check_tensor(tensor, tuple(like.shape), like.dtype)
        check_magnitude(tensor)
    return list(gradients)


@dataclass(frozen=True)
class ReadScores:
    """A client's report of an evaluation.

    Parameters
    ----------
    examples
        The number of examples scored.
    scores
        By name, "accuracy" and "loss" among them.
    misnamed, not_finite
        The further scores that are left out: those with a name that a metric cannot have, and of
        the others those that are not finite numbers.
    """

    examples: int
    scores: Mapping[str, float]
    misnamed: Sequence[str] = ()
    not_finite: Sequence[str] = ()


def read_scores(reply: Mapping[str, Any]) -> ReadScores:
    """Check a client's report of an evaluation.

    Raises
    ------
    UploadError
        If the number of examples is not positive, "accuracy" or "loss" are missing or no finite
        numbers, or the accuracy is not in 0..1.
    """
    examples, scores = reply.get("examples"), reply.get("scores")
    check_number("number of scored examples", examples, 1)
    assert isinstance(examples, int)
    if not isinstance(scores, Mapping):
        raise UploadError("returned no scores of its evaluation")
    for name in ("accuracy", "loss"):
        if name not in scores:
            raise UploadError(f"returned no {name!r} among the scores of its evaluation")
        if not _is_number(scores[name]):
            score = shown(scores[name])
            raise UploadError(
                f"says that its {name} is {score}; expected a finite number, up to {MAX_SCORE:g}"
            )
    if not 0 <= scores["accuracy"] <= 1:
        raise UploadError(f"says that its accuracy is {scores['accuracy']:g}; it must be 0 to 1")
    named = {
        name: value
        for name, value in scores.items()
        if isinstance(name, str) and NAME.fullmatch(name)
    }
    finite = {name: float(value) for name, value in named.items() if _is_number(value)}
    return ReadScores(
        examples,
        finite,
        misnamed=[str(name) for name in scores if name not in named],
        not_finite=[name for name in named if name not in finite],
    )


def warn_of_left_out(read: Iterable[ReadScores], warned: SeenKeys) -> None:
    """Log the names of further scores that are left out, once each, with the reason.

    Parameters
    ----------
    warned
        The names in earlier warnings, quoted; those warned of now are added.
    """
    reports = list(read)
    misnamed = [name for each in reports for name in each.misnamed]
    _warn_of(misnamed, f"the name of a score {NAME_RULE}", warned)
    not_finite = [name for each in reports for name in each.not_finite]
    _warn_of(not_finite, f"a score is a finite number, up to {MAX_SCORE:g}", warned)


def _warn_of(names: Iterable[str], rule: str, warned: SeenKeys) -> None:
    quoted = {repr(one_line(name)[:60]) for name in names}
    new = warned.add_all(sorted(name for name in quoted if name not in warned)[:MAX_NAMED])
    if new:
        log.warning("left out of the run's metrics: %s; %s", ", ".join(new), rule)


def _is_number(value: object) -> bool:
    """Return whether a value is a finite number small enough to average."""
    return isinstance(value, (int, float)) and abs(value) <= MAX_SCORE
