"""Generating with the three parts and one cache equals the whole model's generation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from flwr_splitmix.segments.language import LanguageCut, cut_language_model, generate
from tests.segments.language.tiny_models import (
    DECODERS,
    VOCABULARY,
    config_of,
    joined,
    texts,
    whole_model,
)

NEW = 6


def parts_of(name: str, cut: LanguageCut | None = None) -> Any:
    return cut_language_model(whole_model(config_of(name), scale=0.6), cut or LanguageCut(1, 1))


@pytest.mark.parametrize("name", DECODERS)
def test_the_cache_gives_what_the_texts_as_a_whole_give(name: str) -> None:
    """In pieces of 4, 1 and 4 tokens, at every kind of cut."""
    ids, _ = texts(padded=False)
    for cut in (LanguageCut(0, 0), LanguageCut(1, 2), LanguageCut(2, 0), LanguageCut(0, 3)):
        parts = parts_of(name, cut)
        head, trunk, tail = parts.all_here()
        cache = DynamicCache(config=parts.config)
        pieces = []
        for piece in torch.split(ids, [4, 1, 4], dim=1):
            hidden = trunk(head(piece, None, cache), None, cache)
            pieces.append(tail(hidden, None, cache))
        # These attend in float32, whatever the model's type.
        close = 1e-5 if name in ("gpt_neo", "mpt") else 1e-10
        torch.testing.assert_close(
            torch.cat(pieces, dim=1), joined(parts, ids, None), rtol=close, atol=close
        )


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_tokens_are_the_wholes(name: str) -> None:
    """Texts of one length, and of several: padded to the right here, to the left there."""
    # In float64 the attention of these makes NaN of padding on the left, as Gemma 2's does.
    dtype = "float32" if name in ("bloom", "mpt") else "float64"
    model = whole_model(config_of(name), dtype=dtype, scale=0.6)
    parts = cut_language_model(model, LanguageCut(1, 2))
    model.generation_config.eos_token_id = None
    for padded in (False, True):
        ids, mask = texts(padded)
        attention = torch.ones_like(ids) if mask is None else mask
        order = attention.argsort(dim=1, stable=True)
        expected = model.generate(
            ids.gather(1, order),
            attention_mask=attention.gather(1, order),
            do_sample=False,
            max_new_tokens=NEW,
        )[:, ids.shape[1] :]
        assert torch.equal(generate(parts, ids, mask, max_new_tokens=NEW), expected)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_other_texts_and_their_padding_change_nothing(name: str) -> None:
    parts = parts_of(name)
    ids, mask = texts()
    together = generate(parts, ids, mask, max_new_tokens=NEW)
    alone = generate(parts, ids[2:, :3], max_new_tokens=NEW)
    assert torch.equal(together[2:], alone)


def test_a_text_that_has_ended_stays_so() -> None:
    parts = parts_of("llama")
    ids, mask = texts()

    def drawn(eos_token_id: Any = None) -> torch.Tensor:
        seeded = torch.Generator().manual_seed(2)
        return generate(
            parts, ids, mask, max_new_tokens=NEW, temperature=9.0, generator=seeded,
            eos_token_id=eos_token_id,
        )  # fmt: skip

    free = drawn()
    stop = int(free[0, 2])
    assert free[0, 3] != stop
    for row, expected in zip(drawn([stop, VOCABULARY + 1]), free, strict=True):
        stops = (expected == stop).nonzero()
        length = int(stops[0]) + 1 if len(stops) else NEW
        assert torch.equal(row[:length], expected[:length])
        assert (row[length:] == stop).all()
    every = list(range(VOCABULARY))
    assert drawn(every).shape == (3, 1)


def test_draws_follow_temperature_top_k_and_generator() -> None:
    parts = parts_of("llama")
    ids = texts(padded=False)[0][:1].expand(400, -1)
    logits = joined(parts, ids[:1], None)[0, -1].float()

    def draw(**options: Any) -> torch.Tensor:
        seeded = torch.Generator().manual_seed(1)
        return generate(parts, ids, max_new_tokens=1, generator=seeded, **options)[:, 0]

    assert torch.equal(draw(temperature=1.0), draw(temperature=1.0))
    assert set(draw(temperature=5.0, top_k=3).tolist()) == set(logits.topk(3).indices.tolist())
    assert torch.equal(draw(temperature=9.0, top_k=1), draw())
    shares = torch.bincount(draw(temperature=0.2), minlength=VOCABULARY) / 400
    assert (shares - (logits / 0.2).softmax(0)).abs().max() < 0.08


def test_modes_are_put_back() -> None:
    parts = parts_of("gpt2")
    head, trunk, tail = parts.all_here()
    trunk.train()
    frozen = trunk.stack.layers[0].eval()
    ids, mask = texts()
    first, second = (generate(parts, ids, mask, max_new_tokens=2) for _ in range(2))
    assert torch.equal(first, second)
    assert trunk.training
    assert not frozen.training
    assert not head.training
    assert not tail.training


def test_what_cannot_be_generated_is_refused() -> None:
    ids, mask = texts()
    bert = cut_language_model(
        whole_model(config_of("bert", "classification"), "classification"), LanguageCut(1, 1)
    )
    with pytest.raises(ValueError, match="cut for classification"):
        generate(bert, ids, mask, max_new_tokens=1)
    with pytest.raises(ValueError, match="encoder keeps no cache"):
        bert.all_here()[1](torch.randn(1, 2, 16, dtype=torch.float64), None, DynamicCache())
    parts = parts_of("llama")
    for options in ({"max_new_tokens": 0}, {"temperature": -1.0}, {"top_k": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} (is )?-?[01]"):
            generate(parts, ids, mask, **{"max_new_tokens": 1, **options})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a temperature"):
        generate(parts, ids, mask, max_new_tokens=1, top_k=3)
    with pytest.raises(ValueError, match="with a token in each text"):
        generate(parts, ids, torch.zeros_like(ids), max_new_tokens=1)
    with pytest.raises(ValueError, match=r"65 tokens.*64"):
        generate(parts_of("gpt2"), ids, max_new_tokens=57)
