"""A language model's folder that somebody else has made."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flwr_splitmix.data.texts.tokenizers import train_tokenizer
from flwr_splitmix.runs.export.folder import ExportError
from flwr_splitmix.runs.export.language import open_pretrained

pytest.importorskip("transformers")

QUANTIZED: dict[str, Any] = {"quantization_config": {"quant_method": "torchao"}}


def nested(within: Any, levels: int, *, lists: bool) -> dict[str, Any]:
    for _ in range(levels):
        within = [within] if lists else {"text_config": within}
    return {"model_type": "gpt2", "text_config": within}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (nested({}, 600, lists=False), "cannot read the model in"),
        (nested(QUANTIZED, 600, lists=False), "config.json: it has a quantization_config"),
        (nested(QUANTIZED, 1, lists=True), "config.json: it has a quantization_config"),
    ],
)
def test_a_nested_configuration_is_refused(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """A search through it would end in a RecursionError, and must look into lists."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"weight": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ExportError, match=message):
        open_pretrained(tmp_path, "AutoModelForCausalLM")


WEIGHT = "transformer.h.1.mlp.c_fc.bias"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the folder of a small model, in many files if a test asks for that."""
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 50,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 64,
    }
    whole = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    whole.save_pretrained(tmp_path / "model")
    whole.save_pretrained(tmp_path / "shards", max_shard_size="2KB")
    for folder in ("model", "shards"):
        train_tokenizer(["a dog and a cat"]).save_pretrained(tmp_path / folder)
    return tmp_path / "model"


def change(folder: Path, tensor: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    save_file({**load_file(file), WEIGHT: tensor}, file, {"format": "pt"})


def test_a_sound_folder_is_opened(model: Path) -> None:
    for folder in (model, model.with_name("shards")):
        opened, _ = open_pretrained(folder, "AutoModelForCausalLM")
        assert not opened.training


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(value: float, model: Path) -> None:
    """`splitmix predict` would print classes of nan, or an empty answer, and exit with 0."""
    change(model, torch.full((64,), value))
    with pytest.raises(ExportError) as refused:
        open_pretrained(model, "AutoModelForCausalLM")
    assert str(refused.value) == (
        f"cannot read {model}: its weights {WEIGHT} have NaN or infinite numbers; export the run "
        "again"
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e5m2])
def test_weights_that_are_no_floating_point_numbers_are_refused(
    dtype: torch.dtype, model: Path
) -> None:
    change(model, torch.ones(64).to(dtype))
    message = rf"^model\.safetensors of '{model}' has {WEIGHT} as numbers of type .* export the run"
    with pytest.raises(ExportError, match=message):
        open_pretrained(model, "AutoModelForCausalLM")


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "weights.bin"])
def test_an_index_names_only_files_of_weights_beside_it(name: str, model: Path) -> None:
    """Files anywhere on the machine could be read otherwise."""
    folder = model.with_name("shards")
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    os.replace(folder / index["weight_map"][WEIGHT], folder / name)
    index["weight_map"][WEIGHT] = name
    file.write_text(json.dumps(index))
    with pytest.raises(ExportError, match=rf"cannot read {file}: .*it names '{name}'.* again$"):
        open_pretrained(folder, "AutoModelForCausalLM")
