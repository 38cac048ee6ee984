"""A language model's folder that somebody else has made."""

from __future__ import annotations

import json
import math
import os
import pickle
import tempfile
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


def write(file: Path, **values: object) -> None:
    """Set values of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def logits_of(folder: Path) -> torch.Tensor:
    opened, _ = open_pretrained(folder, "AutoModelForCausalLM")
    with torch.no_grad():
        logits: torch.Tensor = opened(torch.tensor([[1, 2, 3]])).logits
    return logits


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


@pytest.mark.parametrize("name", ["../other/w.safetensors", "w.safetensors"])
def test_weights_are_those_that_an_export_writes(name: str, model: Path) -> None:
    """The configuration may name an index, thus files anywhere, in place of the one checked."""
    expected = logits_of(model)
    tensors = load_file(model / "model.safetensors")
    (model / name).parent.mkdir(exist_ok=True)
    save_file({key: each + 1 for key, each in tensors.items()}, model / name, {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, name)}
    (model / "other.safetensors.index.json").write_text(json.dumps(index))
    write(model / "config.json", transformers_weights="other.safetensors.index.json")
    torch.testing.assert_close(logits_of(model), expected)


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_nothing_is_unpickled(model: Path, tmp_path: Path) -> None:
    """One name is excepted by transformers from use_safetensors."""
    expected = logits_of(model)
    with (model / "adapter_model.bin").open("wb") as file:
        pickle.dump(Touch(tmp_path / "unpickled"), file)
    write(model / "config.json", transformers_weights="adapter_model.bin")
    torch.testing.assert_close(logits_of(model), expected)
    assert not (tmp_path / "unpickled").exists()


def test_adapters_are_not_followed(model: Path) -> None:
    """An export has none, and their configuration could ask for any memory and time."""
    expected = logits_of(model)
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False)
    whole, _ = open_pretrained(model, "AutoModelForCausalLM")
    peft.get_peft_model(whole, lora).save_pretrained(model, save_embedding_layers=False)
    assert (model / "adapter_config.json").exists()
    torch.testing.assert_close(logits_of(model), expected)


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("tokenizer_config.json", {"fast_tokenizer_files": ["../other/tokenizer.1.0.json"]}),
        ("special_tokens_map.json", {"tokenizer_file": "{other}/tokenizer.1.0.json"}),
    ],
)
def test_the_tokenizer_is_the_one_beside_the_model(
    file: str, values: dict[str, Any], model: Path
) -> None:
    other = model.with_name("other")
    other.mkdir()
    text = (model / "tokenizer.json").read_text()
    (other / "tokenizer.1.0.json").write_text(text.replace('"a"', '"elsewhere"'))
    if file == "special_tokens_map.json":  # of an export of earlier versions of transformers
        values = {key: each.format(other=other) for key, each in values.items()}
        config = json.loads((model / "tokenizer_config.json").read_text())
        config.pop("added_tokens_decoder", None)
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        (model / file).write_text("{}")
    write(model / file, **values)
    _, tokenizer = open_pretrained(model, "AutoModelForCausalLM")
    assert "elsewhere" not in tokenizer.get_vocab()
    assert "a" in tokenizer.get_vocab()


def test_no_file_is_left_in_the_folder_of_temporary_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    open_pretrained(model, "AutoModelForCausalLM")
    (model / "tokenizer.json").write_text("[]")
    with pytest.raises(ExportError) as refused:
        open_pretrained(model, "AutoModelForCausalLM")
    assert str(temporary) not in str(refused.value)
    assert not list(temporary.iterdir())
