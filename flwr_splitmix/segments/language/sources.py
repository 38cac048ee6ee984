"""Sources of a model: a configuration, a folder, a downloaded decoder, a name on the hub."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedConfig

from flwr_splitmix.pretrained import located

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class WeightFiles:
    """Weights in safetensors files.

    Attributes
    ----------
    name
        Source of the model, as the caller gave it.
    files
        File name of each tensor.
    fetch
        Downloads files by name if they are missing; returns their folder.
    """

    name: str
    files: Mapping[str, str]
    fetch: Callable[[Iterable[str]], Path]


def open_source(source: Any) -> tuple[Any, WeightFiles | None]:
    """Return a copy of a model's configuration, and its weights, or None for a configuration.

    Of a model on the hub, only configuration and index are downloaded, or the one file of weights
    if there is no index; `WeightFiles.fetch` gets the others as needed.

    Raises
    ------
    ValueError
        If there is no such model, it is one of `MODELS` and not downloaded, it needs code of its
        own, which never runs, or its weights are quantized or not in safetensors files.
    """
    if isinstance(source, PreTrainedConfig):
        return copy.deepcopy(source), None
    if isinstance(source, str):
        source = located(source)
    if isinstance(source, Path) or Path(source).is_dir():
        folder = Path(source)

        def fetch(names: Iterable[str]) -> Path:
            return folder
    else:

        def fetch(names: Iterable[str]) -> Path:
            return _download(source, names)

    folder = fetch(["config.json", INDEX])
    if not (folder / "config.json").is_file():
        raise ValueError(f"{str(source)!r} holds no config.json; it is no model's folder")
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"the weights of {str(source)!r} are quantized; they cannot be trained")
    if (folder / INDEX).is_file():
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return config, WeightFiles(str(source), dict(index["weight_map"]), fetch)
    file = fetch([SINGLE]) / SINGLE
    if not file.is_file():
        raise ValueError(
            f"{str(source)!r} holds neither {SINGLE} nor {INDEX}; to start from random weights "
            "pass the configuration object"
        )
    with safe_open(file, framework="pt") as tensors:
        return config, WeightFiles(str(source), dict.fromkeys(tensors.keys(), SINGLE), fetch)


def _download(name: str, files: Iterable[str]) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name!r} is neither a folder here nor a model that the hub hands out ({error})"
        ) from error
