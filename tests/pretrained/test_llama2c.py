"""The conversion from llama2.c's layout computes, and reads, what llama2.c does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flwr_splitmix.pretrained.llama2c import convert, in_halves, read_model, read_pieces
from tests.pretrained.tiny_llama2c import (
    PIECES,
    drawn,
    encoded,
    logits,
    model_bytes,
    tokenizer_bytes,
)

IDS = [1, 260, 17, 262, 4, 4, 259]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_folder = tmp_path_factory.mktemp("llama2c") / "model"
    model_folder.mkdir()
    convert(model_bytes(drawn()) + tokenizer_bytes(), model_folder)
    return model_folder


def test_rows_of_rotary_pairs_become_halves() -> None:
    rows = torch.arange(8.0)[:, None]  # two heads of width four
    assert in_halves(rows, 2).squeeze(1).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_converted_model_computes_as_llama2c(folder: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        out = model(input_ids=torch.tensor([IDS])).logits[0]
    np.testing.assert_allclose(out.numpy(), logits(drawn(), IDS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("text", ["abc", "aab abc", "cab  bca", "abé aa", "a"])
def test_the_tokenizer_merges_by_score(text: str, folder: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text)["input_ids"]
    assert ids == encoded(text)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.pad_token_id == 0
    assert ids[0] == tokenizer.bos_token_id == 1


def test_either_text_of_a_pair_has_its_beginning(folder: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("abc", "aab")["input_ids"] == [*encoded("abc"), *encoded("aab")]


def test_what_is_no_model_is_refused() -> None:
    whole = model_bytes(drawn())
    with pytest.raises(ValueError, match="need more"):
        read_model(whole[:-4])
    with pytest.raises(ValueError, match="its sizes are"):
        read_model(b"\xff" * 64)
    with pytest.raises(ValueError, match="header"):
        read_model(b"")
    pieces = tokenizer_bytes()
    assert read_pieces(tokenizer_bytes(letters=True), len(PIECES)) == read_pieces(
        pieces, len(PIECES)
    )
    with pytest.raises(ValueError, match="is cut off"):
        read_pieces(pieces[:-1], len(PIECES))
    with pytest.raises(ValueError, match="bytes follow"):
        read_pieces(pieces + b"x", len(PIECES))
