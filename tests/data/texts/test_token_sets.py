"""Rows and public texts as sets of tokens: what is padded, cut, scored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.data import DataError
from flwr_splitmix.data.masked_batch import NOTHING
from flwr_splitmix.data.texts.generated import generated_public
from flwr_splitmix.data.texts.rows import TextRows
from flwr_splitmix.data.texts.text_set import IGNORED
from flwr_splitmix.data.texts.token_sets import public_token_set, token_set
from flwr_splitmix.data.texts.tokenizers import train_tokenizer

LONG = "the old dog sleeps near the boats and the cat sees it"
SENTENCES = TextRows(("the cat sleeps", LONG), np.array([1, 0]), (), ())
QUESTIONS = TextRows(("who sleeps?",), np.zeros(0, np.int64), ("the cat",), ())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(generated_public("classification"), 300)


def test_sentences_keep_their_classes_and_are_padded_to_what_is_asked(tokenizer: Any) -> None:
    encoded = token_set(SENTENCES, tokenizer, "classification", max_length=60, pad_to=60)
    ids, labels = encoded.batch(np.arange(2))
    assert ids.shape == (2, 60)
    assert labels.tolist() == [1, 0]
    for row, text in zip(ids, SENTENCES.texts, strict=True):
        assert row[row != NOTHING].tolist() == tokenizer(text)["input_ids"]


def test_only_answers_are_scored(tokenizer: Any) -> None:
    ids, labels = token_set(QUESTIONS, tokenizer, "generation", max_length=60)[0]
    scored = labels != IGNORED
    assert torch.equal(labels[scored], ids[scored])
    assert tokenizer.decode(labels[scored], skip_special_tokens=True).strip() == "the cat"


def test_long_texts_are_refused_cut_or_dropped(tokenizer: Any) -> None:
    with pytest.raises(DataError, match="text 1 has"):
        token_set(SENTENCES, tokenizer, "classification", max_length=9)
    short = len(tokenizer(SENTENCES.texts[0])["input_ids"])
    lengths = {
        rule: [
            len(encoded[row][0])
            for encoded in [
                token_set(SENTENCES, tokenizer, "classification", max_length=short, long_texts=rule)
            ]
            for row in range(len(encoded))
        ]
        for rule in ("cut", "drop")
    }
    assert lengths == {"cut": [short, short], "drop": [short]}


def test_public_texts_are_cut(tokenizer: Any) -> None:
    encoded = public_token_set([LONG, "a"], tokenizer, max_length=5)
    assert len(encoded[0][0]) == 5
    assert len(encoded) == 2
