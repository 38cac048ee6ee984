"""A small decoder with random weights, texts of random words, and attacks on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.scoring.text_scores import TextFloors, TextScored, score_texts
from flwr_splitmix.attacks.texts.checked_guesses import checked_guesses
from flwr_splitmix.attacks.texts.releasing import Released
from flwr_splitmix.attacks.texts.view import (
    TextAttack,
    TextGuess,
    TextKnowledge,
    TextRelease,
    TextView,
)
from flwr_splitmix.data.texts.text_set import TextSet
from flwr_splitmix.hiding.mixguard import MixGuard, MixGuardOptions
from flwr_splitmix.seeding import seeded_secrets
from flwr_splitmix.segments.language import LanguageCut, LanguageParts, build_language_parts

WORDS, BEGIN, LENGTH = 300, 1, 16


def tiny_parts(head: int) -> LanguageParts:
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.06,
    )
    parts = build_language_parts(config, LanguageCut(head, 1), seed=0)
    for part in parts.all_here():
        part.eval().requires_grad_(False)
    return parts


def texts(count: int, seed: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    # Words of falling frequency, as language's.
    often = 1 / torch.arange(1.0, WORDS - 2)
    drawn = torch.multinomial(often.expand(count, -1), LENGTH - 1, True, generator=rng) + 3
    return [torch.cat([torch.tensor([BEGIN]), row]) for row in drawn]


def grammatical(count: int, seed: int) -> list[Tensor]:
    """Return texts in which each word has three that can follow it."""
    rng, rows = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        ids = [BEGIN]
        for drawn in torch.randint(3, (LENGTH - 1,), generator=rng).tolist():
            ids.append(3 + (ids[-1] * 7 + drawn * 31) % (WORDS - 3))
        rows.append(torch.tensor(ids))
    return rows


def view_of(parts: LanguageParts, releases: list[TextRelease], method: str = "none") -> TextView:
    return TextView("server", releases, TextKnowledge(method, {}, parts, begin=BEGIN))


def decode(ids: Sequence[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


PUBLIC = texts(120, 1)
QUIET: dict[str, Any] = {
    "calibration_epochs": 0,
    "refine_every": 0,
    "perturbation": None,
    "secret_tokens": 0,
}


def guard(supports: Sequence[Tensor] | None = None, **options: Any) -> MixGuard:
    """Return MixGuard without what messages do not depend on."""
    support_texts = texts(40, 3) if supports is None else list(supports)
    return MixGuard(
        TextSet(support_texts, support_texts),
        vocab_size=WORDS,
        special_ids=[0, 1, 2],
        options=MixGuardOptions(**{**QUIET, **options}),
    )


@contextmanager
def seeded() -> Iterator[None]:
    with seeded_secrets():
        torch.manual_seed(0)
        yield


def score_of(guesses: list[TextGuess], parts: LanguageParts, released: Released) -> TextScored:
    return score_texts(guesses, released.origins, TextFloors(parts, PUBLIC, BEGIN), decode)


def attacked(
    attack: TextAttack,
    parts: LanguageParts,
    released: Released,
    budget: Budget | None = None,
) -> TextScored:
    view = view_of(parts, released.releases)
    attack.fit(view, PUBLIC, budget or Budget("smoke"))
    return score_of(checked_guesses(attack, attack.run(view), view), parts, released)
