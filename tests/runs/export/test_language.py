"""A language model's folder that somebody else has made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from flwr_splitmix.runs.export.folder import ExportError
from flwr_splitmix.runs.export.language import open_pretrained

pytest.importorskip("transformers")

QUANTIZED: dict[str, Any] = {"quantization_config": {"quant_method": "torchao"}}


def nested(within: Any, levels: int, *, lists: bool) -> dict[str, Any]:
    for _ in range(levels):
        within = [within] if lists else {"text_config": within}
    return {"model_type": "gpt2", "text_config": within}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (nested({}, 600, lists=False), "cannot read the model in"),
        (nested(QUANTIZED, 600, lists=False), "config.json: it has a quantization_config"),
        (nested(QUANTIZED, 1, lists=True), "config.json: it has a quantization_config"),
    ],
)
def test_a_nested_configuration_is_refused(
    config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """The search through it ended in a RecursionError, and did not look into lists."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"weight": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ExportError, match=said):
        open_pretrained(tmp_path, "AutoModelForCausalLM")
