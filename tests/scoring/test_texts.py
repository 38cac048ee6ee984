"""Scores of texts: means over the labels that count."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.data.texts.text_set import IGNORED
from flwr_splitmix.scoring.texts import TextScores


def batch(labels: list[list[int]]) -> MaskedBatch:
    tokens = torch.tensor(labels)
    return MaskedBatch(tokens.clamp(min=0), torch.ones_like(tokens), tokens)


def test_texts_without_a_label_have_no_score() -> None:
    """A loss of 0 and a perplexity of 1 would be the best there is."""
    scores = TextScores()
    scores.add(torch.zeros(2, 3, 8), batch([[4, IGNORED, IGNORED], [IGNORED] * 3]))
    with pytest.raises(ExamplesError, match="none of the 2 test texts has a label to score"):
        scores.result()


def test_only_labels_that_count_are_in_the_means() -> None:
    logits = torch.zeros(2, 3, 8)
    logits[0, 1, 5] = 50.0
    scores = TextScores()
    scores.add(logits, batch([[4, IGNORED, 5], [IGNORED] * 3]))
    assert scores.result() == pytest.approx({"loss": 0, "accuracy": 1, "perplexity": 1})
