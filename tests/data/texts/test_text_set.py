"""Texts as examples and as batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.clients import TextSet
from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.scoring.texts import text_loss

CPU = torch.device("cpu")


def text(*ids: int) -> torch.Tensor:
    return torch.tensor(ids)


def test_a_batch_is_padded_on_the_right_to_its_longest_text() -> None:
    texts = TextSet([text(5, 6, 7), text(8), text(9, 10)], [0, 1, 1])
    batch = MaskedBatch.of(texts.batch(np.array([0, 1])), CPU)
    assert batch.inputs.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch.mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.labels.tolist() == [0, 1]


def test_pad_to_hides_the_longest_text() -> None:
    texts = TextSet([text(5, 6)], [text(-100, 6)], pad_to=4)
    batch = MaskedBatch.of(texts.batch(np.array([0])), CPU)
    assert batch.mask.tolist() == [[1, 1, 0, 0]]
    assert batch.labels.tolist() == [[-100, 6, -100, -100]]


@pytest.mark.parametrize(
    ("texts", "labels", "options", "sentence"),
    [
        ([text(1)], [], {}, "there is 1 text and 0 labels"),
        ([text()], [0], {}, "text 0 has 0 tokens; expected at least 1"),
        ([text(1, 2, 3)], [0], {"max_length": 2}, r"text 0 has 3 tokens; expected 1\.\.2"),
        ([text(1, 2, 3)], [0], {"pad_to": 2}, r"text 0 has 3 tokens; expected 1\.\.2"),
        ([text(1, 2)], [text(1)], {}, "text 0 has 2 tokens and 1 label"),
        ([text(1, -1)], [0], {}, "text 0 has the token id -1; ids are at least 0"),
        ([text(1), torch.tensor([1.0])], [0, 1], {}, "text 1 is torch.float32; expected integ"),
        ([text(1)], [0.7], {}, "label 0 is torch.float32; expected integers"),
        (["word"], [0], {}, "text 0 is str; expected integers"),
        ([text(1)], [None], {}, "label 0 is NoneType; expected integers"),
        ([torch.tensor([[1]])], [0], {}, r"text 0 has shape \(1, 1\); expected \(tokens,\)"),
        (
            [text(1), text(2)], [0, text(2)], {},
            "text 1 has a label for each token, but text 0 has one label",
        ),
        (
            [text(1, 2), text(3, 4)], [text(1, 2), text(-100, 1)], {},
            r"text 1 has labels of other tokens: .* \(token classification\) is not off",
        ),
    ],
)  # fmt: skip
def test_wrong_texts_are_named(
    texts: Any, labels: Any, options: dict[str, int], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        TextSet(texts, labels, **options)


@pytest.mark.parametrize("wrong", ["texts", "labels"])
def test_what_is_no_list_is_named(wrong: str) -> None:
    arguments: dict[str, Any] = {"texts": [text(1)], "labels": [0], wrong: None}
    with pytest.raises(TypeError, match=f"{wrong} is None; expected a list with one entry for ea"):
        TextSet(**arguments)


def test_texts_and_labels_can_be_lists_of_integers() -> None:
    texts = TextSet([[5, 6], [7]], [[-100, 6], [-100]])
    batch = MaskedBatch.of(texts.batch(np.array([0, 1])), CPU)
    assert batch.inputs.tolist() == [[5, 6], [7, 0]]
    assert batch.labels.tolist() == [[-100, 6], [-100, -100]]


def test_each_token_is_predicted_at_the_one_before_it() -> None:
    logits = torch.full((1, 3, 5), -50.0)
    logits[0, 0, 2] = logits[0, 1, 4] = 50.0  # after the first token 2, after the second 4
    assert text_loss(logits, torch.tensor([[0, 2, 4]])) == pytest.approx(0, abs=1e-6)
    assert text_loss(logits, torch.tensor([[0, 2, 3]])) > 40
    assert text_loss(logits, torch.tensor([[0, -100, 4]])) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("logits", "labels", "sentence"),
    [
        ((2, 3), [0, 3], r"labels lie in 0\.\.3, expected 0\.\.2 .* give the tail 4 logits"),
        (
            (2, 3),
            [-1, -100],
            r"labels lie in -1\.\.-1, expected 0\.\.2 \(classes start at 0: leave out",
        ),
        ((1, 2, 3), [[0, 3]], r"0\.\.2; the tail needs a logit for each token of the vocabulary"),
        ((2, 4, 3), [0, 1], "a class for each text goes with"),
        ((2, 3), [[0, 1], [1, 1]], "a class for each text goes with"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    logits: tuple[int, ...], labels: Any, sentence: str
) -> None:
    with pytest.raises(ExamplesError, match=sentence):  # a client foresees it
        text_loss(torch.zeros(logits), torch.tensor(labels))
