"""No segment that the package cuts by name is said to mix the examples of a batch, if it does not.

Nor does a random part of its computations, such as dropout, pass for that.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flwr_splitmix.segments import split_shuffled_edge, split_vision_model
from flwr_splitmix.segments.across_batch import mixes_examples, needs_whole_batch
from flwr_splitmix.segments.language import LanguageCut, cut_language_model
from tests.segments.language.tiny_models import CASES, config_of, texts, whole_model
from tests.segments.vision.test_whole import MODELS

BATCH = 16
SMALL = [(name, options) for name, options in MODELS if not name.startswith("vgg")]
TEXT_MODELS = [
    (name, task, dtype)
    for name, task in CASES
    for dtype in ("float32", "bfloat16")
    if (name, dtype) != ("deberta", "bfloat16")  # it has biases in float32, and does not run
]


@pytest.mark.parametrize(("name", "options"), SMALL, ids=str)
def test_lower_segments_of_images(
    name: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    lower = split_vision_model(name, seed=1, **options).lower
    images = torch.rand(BATCH, *lower.input_shape)
    assert needs_whole_batch(lower) or not mixes_examples(lower, images)
    assert not caplog.records


@pytest.mark.parametrize("method", ["patch", "spectral", "spectral-pixels"])
def test_edges_that_shuffle_within_an_image(method: Any, caplog: pytest.LogCaptureFixture) -> None:
    lower = split_shuffled_edge(method=method, image_size=16, depth=2, seed=1).lower
    assert not mixes_examples(lower, torch.rand(BATCH, *lower.input_shape))
    assert not caplog.records


@pytest.mark.parametrize(("name", "task", "dtype"), TEXT_MODELS)
def test_heads_and_tails_of_texts(
    name: str, task: str, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = whole_model(config_of(name, task), task, dtype)
    ids, mask = texts()
    assert mask is not None
    for cut in (LanguageCut(1, 1), LanguageCut(0, 3)):
        head, _, tail = cut_language_model(model, cut).all_here()
        with torch.no_grad():
            hidden = head(ids, mask)
        rows = torch.arange(BATCH) % len(ids)
        assert not mixes_examples(head, ids[rows], mask[rows])
        assert not mixes_examples(tail, hidden[rows], mask[rows])
    assert not caplog.records
