"""Scores that clients computed, combined: which mean, and what is said if not all have one."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.evaluation.client_scores import combine
from flwr_splitmix.server.intake.ushape import ReadScores


def read(loss: float, examples: int = 1, **scores: float) -> ReadScores:
    return ReadScores(examples, {"accuracy": 0.5, "loss": loss, **scores})


def combined(*reads: ReadScores, once: SeenKeys | None = None) -> dict[str, float]:
    scored = dict(enumerate(reads))
    return combine(scored, {c: scores.examples for c, scores in scored.items()}, once or SeenKeys())


def test_the_perplexity_is_that_of_the_mean_loss() -> None:
    """A mean of perplexities is that of the worst client: 34.41 beside a loss of 1.2414."""
    scores = combined(read(0.5, 24, perplexity=math.exp(0.5)), read(4.0, 8, perplexity=math.exp(4)))
    assert scores["loss"] == pytest.approx(1.375)
    assert scores["perplexity"] == pytest.approx(math.exp(1.375))


def test_a_perplexity_of_another_kind_is_averaged_as_any_score() -> None:
    assert combined(read(1.0, 3, perplexity=2.0), read(2.0, 1, perplexity=4.0))["perplexity"] == 2.5
    assert "perplexity" not in combined(read(1.0), read(2.0))


def two_classes(matthews: float) -> ReadScores:
    return read(1.0, matthews=matthews)


@pytest.mark.parametrize(
    ("others", "mean", "words"),
    [
        (2, 0.3, "2 of the 4 clients that were evaluated: the run has the mean over these"),
        (3, None, "2 of the 5 clients that were evaluated: the run leaves it out"),
    ],
)
def test_a_score_that_not_all_clients_have_is_named_once(
    others: int, mean: float | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a word, Matthews' correlation could cover half of the clients, or vanish."""
    once = SeenKeys()
    reads = [two_classes(0.2), two_classes(0.4), *[read(1.0)] * others]
    with caplog.at_level(logging.WARNING, logger="flwr.splitmix"):
        for _ in range(2):
            scores = combined(*reads, once=once)
    assert scores.get("matthews") == (None if mean is None else pytest.approx(mean))
    assert [record.getMessage() for record in caplog.records] == [
        f"'matthews' is a score of {words}"
    ]


def test_names_that_one_client_invents_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    invented: dict[str, Any] = {f"own{i}": 1.0 for i in range(100)}
    with caplog.at_level(logging.WARNING, logger="flwr.splitmix"):
        combined(read(1.0, **invented), read(1.0))
    assert len(caplog.records) == 5
