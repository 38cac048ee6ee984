"""Folders of models that cannot be used: the reason is told, and nothing in them runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from flwr_splitmix.segments.language import LanguageCut, build_language_parts
from flwr_splitmix.segments.language.build import open_skeleton
from flwr_splitmix.segments.language.sources import INDEX, SINGLE, open_source
from tests.segments.language.tiny_models import config_of, whole_model

CONFIG, DEEP = "config.json", "[" * 100_000
OPTIONS: dict[str, Any] = {"task": "generation", "num_labels": 2, "dtype": "float32"}


@pytest.mark.parametrize("text", ["[]", "{}", "1", '{"weight_map": []}', DEEP, "{"])
def test_a_damaged_index_is_named(text: str, tmp_path: Path) -> None:
    whole_model(config_of("llama", "generation"), "generation").save_pretrained(tmp_path)
    assert open_source(tmp_path)[1] is not None
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ValueError, match=rf"^{INDEX} of '.*' cannot be read \("):
        open_source(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, (2**40).to_bytes(8, "little") + b"{}"])
def test_a_damaged_file_of_weights_is_named(data: bytes, tmp_path: Path) -> None:
    whole_model(config_of("llama", "generation"), "generation").save_pretrained(tmp_path)
    (tmp_path / SINGLE).unlink()
    (tmp_path / SINGLE).write_bytes(data)
    with pytest.raises(ValueError, match=rf"^{SINGLE} of '.*' cannot be read \("):
        open_source(tmp_path)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("damage", ["cut", "another", "missing", "pipe"])
def test_a_damaged_part_of_the_weights_is_named(damage: str, tmp_path: Path) -> None:
    model = whole_model(config_of("llama", "generation"), "generation")
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    checkpoint = open_source(tmp_path)[1]
    assert checkpoint is not None
    name = checkpoint.files["model.embed_tokens.weight"]
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if damage == "cut":
        (tmp_path / name).write_bytes(whole[:-1])
    elif damage == "another":
        save_file({"another": torch.ones(1)}, tmp_path / name)
    elif damage == "pipe":
        os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=rf"^{name} of '.*' cannot be read \("):
        build_language_parts(tmp_path, LanguageCut(1, 1))
    with pytest.raises(ValueError, match=rf"^{name} of '.*' cannot be read \("):
        open_skeleton(tmp_path, LanguageCut(1, 1), **OPTIONS)


@pytest.mark.parametrize("text", ["[]", "1", '{"a": ' * 5000 + "1" + "}" * 5000, DEEP, "{"])
def test_a_damaged_configuration_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(ValueError, match=rf"^{CONFIG} of '.*' cannot be read \("):
        open_source(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": "x"},
        {"num_hidden_layers": 10**9},
        {"num_labels": 10**9},
        {"text_config": {"num_hidden_layers": 10**9}},
    ],
    ids=str,
)
def test_a_configuration_with_impossible_numbers_is_named(
    changes: Mapping[str, Any], tmp_path: Path
) -> None:
    described = {**config_of("llama", "generation").to_dict(), **changes}
    (tmp_path / CONFIG).write_text(json.dumps(described))
    with pytest.raises(ValueError, match=rf"^{CONFIG} of '.*' cannot be read \("):
        open_source(tmp_path)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "intermediate_size", "head_dim"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_size_that_no_model_has_is_named(key: str, nested: bool, tmp_path: Path) -> None:
    """Otherwise the run would fill the memory, and `splitmix check` find nothing wrong."""
    whole_model(config_of("llama", "generation"), "generation").save_pretrained(tmp_path)
    described = json.loads((tmp_path / CONFIG).read_text())
    described |= {"text_config": {key: 10**12}} if nested else {key: 10**12}
    (tmp_path / CONFIG).write_text(json.dumps(described))
    needed = rf"^{CONFIG} of '.*' cannot be read \(.*{key} is 1000000000000; at most \d+ are read"
    with pytest.raises(ValueError, match=needed):
        build_language_parts(tmp_path, LanguageCut(1, 1))


def test_code_that_comes_with_a_model_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    custom_code = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(custom_code))
    (tmp_path / "own.py").write_text("raise SystemExit('the code ran')\n")
    monkeypatch.setattr("builtins.input", lambda _: "y")  # transformers asks by default
    with pytest.raises(ValueError, match="custom code"):
        open_source(tmp_path)
