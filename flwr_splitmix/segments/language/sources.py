"""Sources of a model: a configuration, a folder, a downloaded decoder, a name on the hub."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import safe_open
from transformers import AutoConfig, PreTrainedConfig

from flwr_splitmix.files.names import is_bare
from flwr_splitmix.files.reading import check_regular, read_json
from flwr_splitmix.pretrained import located
from flwr_splitmix.private_names import forget_experts
from flwr_splitmix.words import cause

CONFIG = "config.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_MOST = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 10_000),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "n_heads"), 2**16),
    **dict.fromkeys(("num_experts", "num_local_experts"), 2**16),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "head_dim"), 2**20),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "n_inner", "ffn_dim"), 2**24),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 2**26),
    "num_labels": 2**16,
    "vocab_size": 2**24,
}
"""Largest values of keys: some configurations make a list of that length when read, and tensors of
other sizes would fill the memory. No model comes near them."""


@dataclass(frozen=True)
class WeightFiles:
    """Weights in safetensors files.

    Attributes
    ----------
    name
        Source of the model, as the caller gave it.
    files
        File name of each tensor, without a folder.
    fetch
        Downloads files by name if they are missing; returns their folder.
    on_hub
        Whether `fetch` downloads; else all files should be in the folder already.
    """

    name: str
    files: Mapping[str, str]
    fetch: Callable[[Iterable[str]], Path]
    on_hub: bool = False


def open_source(source: Any) -> tuple[Any, WeightFiles | None]:
    """Return a copy of a model's configuration, and its weights, or None for a configuration.

    Of a model on the hub, only configuration and index are downloaded, or the one file of weights
    if there is no index; `WeightFiles.fetch` gets the others as needed.

    Raises
    ------
    ValueError
        If there is no such model, it is one of `MODELS` and not downloaded, it needs code of its
        own, which never runs, one of its files is damaged, no regular file or not in its folder, or
        its weights are quantized or not in safetensors files.
    """
    if isinstance(source, PreTrainedConfig):
        return copy.deepcopy(source), None
    if isinstance(source, str):
        source = located(source)
    on_hub = not (isinstance(source, Path) or Path(source).is_dir())
    if not on_hub:
        folder = Path(source)

        def fetch(names: Iterable[str]) -> Path:
            return folder
    else:

        def fetch(names: Iterable[str]) -> Path:
            return _download(source, names)

    folder = fetch([CONFIG, INDEX])
    for name in (CONFIG, INDEX):
        with readable(source, name):
            check_regular(folder / name)
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{str(source)!r} holds no {CONFIG}; it is not a model's folder")
    with readable(source, CONFIG):
        _check_counts(read_json(folder / CONFIG))
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        forget_experts(config)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"the weights of {str(source)!r} are quantized; they cannot be trained")
    if (folder / INDEX).is_file():
        with readable(source, INDEX):
            files = files_in(folder / INDEX)
        return config, WeightFiles(str(source), files, fetch, on_hub)
    file = fetch([SINGLE]) / SINGLE
    with readable(source, SINGLE):
        check_regular(file)
    if not file.is_file():
        raise ValueError(
            f"{str(source)!r} holds neither {SINGLE} nor {INDEX}; to start from random weights "
            "pass the configuration object"
        )
    with readable(source, SINGLE), safe_open(file, framework="pt") as tensors:
        files = dict.fromkeys(tensors.keys(), SINGLE)
        return config, WeightFiles(str(source), files, fetch, on_hub)


def files_in(index: Path) -> dict[str, str]:
    """Return the file's name of each tensor, as an index of weights lists them.

    Raises
    ------
    Exception
        Whatever a damaged index leads to; ValueError if it names a file outside its folder.
    """
    files = {}
    for key, name in read_json(index)["weight_map"].items():
        if not is_bare(name):
            raise ValueError(
                f"it names {name!r:.200}, which is not a file beside it; put all files of weights "
                "into the model's folder"
            )
        files[str(key)] = name
    return files


@contextmanager
def readable(source: Any, file: str) -> Iterator[None]:
    """Raise ValueError for whatever libraries raise when they read a damaged file of a model."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{file} of {str(source)!r} cannot be read ({cause(error)})") from error


def _check_counts(values: Any) -> None:
    for key, value in values.items():
        if isinstance(value, int) and value > (most := _MOST.get(key, value)):
            raise ValueError(f"{key} is {value!r:.80}; at most {most} are read")
        if isinstance(value, dict):  # the part of a larger model that is its decoder, say
            _check_counts(value)


def _download(name: str, files: Iterable[str]) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name!r} is neither a folder here nor a model that the hub hands out ({error})"
        ) from error
