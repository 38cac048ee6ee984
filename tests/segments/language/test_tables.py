"""Weights that all layers read: each part has a copy, which nothing trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from flwr_splitmix.segments.language import (
    LanguageCut,
    LanguageParts,
    add_lora,
    build_language_parts,
    cut_language_model,
    export,
    merge_lora,
    place_trunk,
    trainable_state,
)
from flwr_splitmix.segments.language.layouts.layout import Task
from tests.segments.language.tiny_models import (
    AUTO,
    LABELS,
    TABLES,
    VOCABULARY,
    config_of,
    joined,
    texts,
    whole_model,
)

TASK: Task = "classification"


def cut(name: str) -> tuple[nn.Module, LanguageParts]:
    model = whole_model(config_of(name, TASK), TASK)
    return model, cut_language_model(model, LanguageCut(1, 1))


@pytest.mark.parametrize("name", TABLES)
def test_each_part_has_its_own_copy_which_is_not_trained(name: str) -> None:
    model, parts = cut(name)
    for part in parts.all_here():
        for key in TABLES[name]:
            buffer = part.get_buffer(f"stack.tables.{key.split('.encoder.')[1]}")
            table = model.get_parameter(key)
            assert table.requires_grad
            assert torch.equal(buffer, table)
            assert buffer.data_ptr() != table.data_ptr()
        assert not any("tables" in key for key in trainable_state(part))
        add_lora(part, rank=2)
        merge_lora(part)  # after which all weights are trained
        assert not any("tables" in key for key in trainable_state(part))
    head, trunk, _ = parts.all_here()
    expected = head(*texts())
    trunk.to("meta")
    assert torch.equal(head(*texts()), expected)


@pytest.mark.parametrize("name", TABLES)
def test_parts_that_learn_stay_one_model(name: str, tmp_path: Path) -> None:
    parts = build_language_parts(
        config_of(name), LanguageCut(0, 1), task=TASK, num_labels=LABELS, dtype="float64"
    )
    learning = [weight for part in parts.all_here() for weight in part.parameters()]
    torch.autograd.backward(joined(parts, *texts()).square().sum())
    torch.optim.SGD(learning, lr=0.1).step()
    export(parts, tmp_path)
    model = AUTO[TASK].from_pretrained(tmp_path)
    _, trunk, tail = parts.all_here()
    for key in TABLES[name]:
        for part in (trunk, tail):
            buffer = part.get_buffer(f"stack.tables.{key.split('.encoder.')[1]}")
            assert torch.equal(buffer, model.get_parameter(key))


@pytest.mark.parametrize("name", TABLES)
def test_the_first_embedding_of_a_head_is_the_tokens(name: str) -> None:
    """Who looks for a head's token embedding, as NoPeek does, takes its first."""
    head = cut(name)[1].head
    assert head is not None
    first = next(part for part in head.modules() if isinstance(part, nn.Embedding))
    assert first.num_embeddings == VOCABULARY


@pytest.mark.parametrize("place", ["cpu", "disk"])
@pytest.mark.parametrize("name", TABLES)
def test_a_trunk_on_disk_reads_them(name: str, place: str, tmp_path: Path) -> None:
    trunk, (_, mask) = cut(name)[1].trunk, texts()
    assert trunk is not None
    hidden = torch.randn(3, 9, 16, dtype=torch.float64)
    expected = trunk(hidden, mask)
    devices = {"stack.layers.0": "cpu", "stack.layers.1": "disk", "stack.tables": place}
    place_trunk(trunk, device_map=devices, offload_folder=tmp_path)
    with torch.no_grad():
        assert torch.equal(trunk(hidden, mask), expected)


def test_the_first_deberta_is_computed_in_float32_only() -> None:
    with pytest.raises(ValueError, match=r"'bfloat16'.*type 'deberta' in float32 and float64 only"):
        build_language_parts(config_of("deberta"), LanguageCut(1, 1), task=TASK, dtype="bfloat16")
