"""A client's head as it has become, learned from the plain states of its public texts."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.texts.view import PublicRelease
from flwr_splitmix.attacks.texts.word_pairs import WordPairs
from flwr_splitmix.attacks.texts.word_reader import WordReader
from flwr_splitmix.segments.language import LanguageParts
from flwr_splitmix.segments.language.parts import Head

__all__ = ["MovedHead", "likely_words", "moved_head"]

TEXTS, HELD_OUT = 48, 8
"""Newest public texts that are used, and how many of them the head is not fitted to."""

STEPS = {"smoke": 20, "cpu": 80, "paper": 400}
BATCH, LEARNING_RATE = 8, 1e-3

SHARPNESS = 20.0
"""Log likelihood of a word, up to a constant: this times the cosine of its state."""

CANDIDATES = 48
"""Words tried at a place."""


@dataclass(frozen=True)
class MovedHead:
    """The information in public texts on a client's head, and on what becomes of its states.

    Parameters
    ----------
    parts
        The base model with the head as it was learned.
    scale, noise
        A text's only message is about `scale` times (state + noise of this standard deviation),
        which includes what the learned head gets wrong. None if a text has several messages.
    error
        Relative error of the head's states of texts that it was not fitted to.
    """

    parts: LanguageParts
    scale: float | None
    noise: float | None
    error: float


def moved_head(
    parts: LanguageParts,
    reader: WordReader,
    releases: Sequence[PublicRelease],
    pairs: WordPairs,
    budget: Budget,
    *,
    seed: int = 0,
) -> MovedHead:
    """Fit a copy of the base head to the plain states of public texts whose words are guessed.

    The base head stays if it fits other such texts better.

    Parameters
    ----------
    parts, reader
        The base model, and a reader with its head.
    releases
        Public texts as their client sent them, oldest first.
    pairs
        How likely words follow each other.
    """
    newest = list(releases)[-TEXTS:]
    texts = [(likely_words(r.states, reader, pairs), r.states.float()) for r in newest]
    held_count = min(HELD_OUT, max(1, len(texts) // 4))
    # Calibration goes through its texts in turn, so those held out are spread over the newest.
    apart = range(len(texts) - 1, -1, -(len(texts) // held_count))[:held_count]
    training = [text for place, text in enumerate(texts) if place not in apart] or texts
    others = [texts[place] for place in apart]
    assert parts.head is not None
    base, skip = parts.head, reader.behind
    head = copy.deepcopy(base).requires_grad_(True)
    optimizer = torch.optim.Adam(head.parameters(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(seed)
    steps = STEPS[budget.scale]
    for step in budget.steps(steps, "head"):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - step / steps)
        rows = torch.randint(len(training), (BATCH,), generator=generator).tolist()
        loss = _squares(head, [training[row] for row in rows], skip)[0].mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    head.requires_grad_(False)
    with torch.no_grad():
        errors = {candidate: _error(candidate, others, skip) for candidate in (base, head)}
        best = min(errors, key=lambda candidate: errors[candidate])
        scale, noise = _noise(best, [newest[place] for place in apart], others, skip)
    return MovedHead(replace(parts, head=best), scale, noise, errors[best])


def likely_words(states: Tensor, reader: WordReader, pairs: WordPairs) -> Tensor:
    """Return the likeliest text (T,) behind hidden states (T, d) of a head that has moved.

    At each place those of the public words count whose states alone are nearest; of all texts of
    these, the one with the greatest sum of cosines and log shares is found exactly (Viterbi).
    """
    cosines = reader.cosines(states)[:, pairs.words]
    near, places = cosines.topk(min(CANDIDATES, len(pairs.words)), dim=1)
    words = pairs.words[places]
    if reader.begin is not None:
        words[0], near[0, 1:] = reader.begin, -torch.inf
    best, backwards = SHARPNESS * near[0], []
    for place in range(1, len(states)):
        follows = pairs.log_shares(words[place - 1], words[place])
        reached, before = (best[:, None] + follows).max(0)
        best = reached + SHARPNESS * near[place]
        backwards.append(before)
    at = int(best.argmax())
    read = [words[-1, at]]
    for place in range(len(states) - 2, -1, -1):
        at = int(backwards[place][at])
        read.append(words[place, at])
    return torch.stack(read[::-1])


Text = tuple[Tensor, Tensor]
"""Words (t,) and hidden states (t, d) of a text."""


def _squares(head: nn.Module, texts: Sequence[Text], skip: int) -> tuple[Tensor, Tensor]:
    """Return squared differences of a head's states from given ones, and these, at all places."""
    ids = nn.utils.rnn.pad_sequence([words for words, _ in texts], batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(w) for w, _ in texts], batch_first=True)
    states = nn.utils.rnn.pad_sequence([hidden for _, hidden in texts], batch_first=True)
    real = mask.bool()
    real[:, :skip] = False
    return (head(ids, mask) - states)[real].square(), states[real]


def _error(head: nn.Module, texts: Sequence[Text], skip: int) -> float:
    squares, states = _squares(head, texts, skip)
    return float((squares.sum() / states.square().sum().clamp(min=1e-12)).sqrt())


def _noise(
    head: nn.Module, releases: Sequence[PublicRelease], texts: Sequence[Text], skip: int
) -> tuple[float | None, float | None]:
    """Return scale and noise of messages, compared with a head's own states of their texts."""
    if any(len(release.messages) > 1 for release in releases):
        return None, None
    states = torch.cat([cast(Head, head)(words[None])[0, skip:] for words, _ in texts])
    messages = torch.cat(
        [r.messages[0, skip : len(words)] for r, (words, _) in zip(releases, texts, strict=True)]
    ).float()
    scale = float((messages * states).sum() / states.square().sum().clamp(min=1e-12))
    if not scale > 0:
        return None, None
    return scale, math.sqrt(float((messages / scale - states).square().mean()))
