"""Texts of the matrix: their owners, and the task on them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flwr_splitmix.data import DataError
from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.privacy.texts.data import load_matrix_texts
from flwr_splitmix.experiments.privacy.texts.sizes import SUMS, TEXT_SIZES, Fitting

SMOKE = TEXT_SIZES["smoke"]
LONGER = Fitting(samples=41, epochs=2, lr=1e-3)


def test_texts_are_disjoint_and_the_seed_says_which() -> None:
    texts = load_matrix_texts(SUMS, SMOKE, 0)
    assert (texts.task, len(texts.train), len(texts.test)) == ("generation", 16, 16)
    assert (len(texts.supports), len(texts.public)) == (SMOKE.supports, SMOKE.public)
    groups = [texts.train.texts, texts.test.texts, texts.supports, texts.public]
    sets = [{tuple(ids.tolist()) for ids in group} for group in groups]
    assert sum(map(len, sets)) == len(set.union(*sets))
    assert all(
        torch.equal(*pair) for pair in zip(texts.train.texts, texts.train.labels, strict=True)
    )
    again, other = load_matrix_texts(SUMS, SMOKE, 0), load_matrix_texts(SUMS, SMOKE, 1)
    assert again.trained == texts.trained
    for one, same in zip(texts.victims[0], again.victims[0], strict=True):
        assert torch.equal(one, same)
    assert other.victims[0][0].tolist() != texts.victims[0][0].tolist()


def corpus(folder: Path) -> None:
    """Write a small CoLA, a small GSM8K, and public texts next to them."""
    for name in ("cola", "gsm8k", "public_text"):
        (folder / name).mkdir()
    rows = "\n".join(f"gj04\t{i % 2}\t\tthe old dog number {i} sleeps now ." for i in range(40))
    for name in ("in_domain_train.tsv", "in_domain_dev.tsv"):
        (folder / "cola" / name).write_text(rows)
    sums = "\n".join(
        json.dumps({"question": f"How many is {i} ?", "answer": f"{i}\n#### {i}"})
        for i in range(40)
    )
    for name in ("train.jsonl.gz", "test.jsonl.gz"):
        (folder / "gsm8k" / name).write_bytes(gzip.compress(sums.encode()))
    public = "\n\n".join(f"It was late in the year {i} and the boats slept." for i in range(60))
    (folder / "public_text" / "book.txt").write_text(public)


def test_cola_is_classified_and_of_gsm8k_every_word_is_learned(tmp_path: Path) -> None:
    corpus(tmp_path)
    cola = load_matrix_texts(str(tmp_path / "cola"), SMOKE, 0)
    assert (cola.task, cola.classes) == ("classification", 2)
    assert {int(label) for label in cola.train.labels} == {0, 1}
    assert cola.victims[1] == [
        *(int(cola.train.labels[i]) for i in cola.trained),
        *(int(cola.test.labels[i]) for i in cola.held_out),
    ]
    gsm8k = load_matrix_texts(str(tmp_path / "gsm8k"), SMOKE, 0)
    assert gsm8k.task == "generation"
    assert "####" in gsm8k.tokenizer.decode(gsm8k.train.texts[0])
    with pytest.raises(DataError, match=r"60 public texts beside .*; expected at least 140"):
        load_matrix_texts(str(tmp_path / "cola"), replace(SMOKE, public=124), 0)
    with pytest.raises(DataError, match="has 40 texts; expected at least 41"):
        load_matrix_texts(str(tmp_path / "cola"), replace(SMOKE, fitting_classes=LONGER), 0)
    assert len(load_matrix_texts(SUMS, replace(SMOKE, fitting_classes=LONGER), 0).train) == 16
    with pytest.raises(ExperimentError, match="cannot read 'wikitext'; --dataset is 'sums', or"):
        load_matrix_texts("wikitext", SMOKE, 0)
