"""The fetched decoders know language: a sentence against the same words shuffled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from flwr_splitmix.data.texts.tokenizers import open_tokenizer
from flwr_splitmix.pretrained import MODELS, model_folder

SENTENCE = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
)
SHUFFLED = (
    "park a there Lily. was upon play outside little the loved Once named girl time, She in a to"
)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_sentence_is_likelier_than_its_words_shuffled(name: str) -> None:
    folder = model_folder(name)
    if not (folder / "config.json").is_file():
        pytest.skip(f"{name} is not fetched: splitmix model fetch {name}")
    tokenizer: Any = open_tokenizer(name)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)

    def perplexity(text: str) -> float:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            return float(model(input_ids=ids, labels=ids).loss.exp())

    assert perplexity(SENTENCE) < 15
    assert perplexity(SHUFFLED) > 20 * perplexity(SENTENCE)
