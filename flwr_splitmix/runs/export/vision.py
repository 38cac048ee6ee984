"""Export of a vision model: segments, timm's whole model if there is one, ONNX, model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from flwr_splitmix.data.images.preprocessing import Preprocessing
from flwr_splitmix.runs.export.card import model_card
from flwr_splitmix.runs.export.folder import new_folder, write_facts
from flwr_splitmix.runs.export.onnx_file import PixelsToLogits, write_onnx
from flwr_splitmix.segments import SplitModel
from flwr_splitmix.segments.vision.whole import WholeModel, whole_model

LOWER, UPPER, WHOLE = "lower.safetensors", "upper.safetensors", "model.safetensors"
ONNX = "model.onnx"


def write_vision(
    target: Path, segments: SplitModel, facts: Mapping[str, Any], *, onnx: bool, force: bool
) -> dict[str, Any]:
    """Write a trained vision model to a folder.

    Parameters
    ----------
    segments
        Lower and upper segment, with the trained weights.
    facts
        The model card's statements about them; "segments" has the call that makes such segments,
        "preprocessing" and "classes" are those of the run.
    onnx
        Whether to write an ONNX file, too.
    force
        Whether existing files may be overwritten.

    Returns
    -------
    The facts as written.

    Raises
    ------
    ExportError
        If the target is not empty, or the ONNX file cannot be written.
    OSError
        If the folder cannot be written.
    """
    lower, upper = (segment.eval() for segment in segments)
    steps = Preprocessing.from_facts(facts["preprocessing"])
    with new_folder(target, force=force) as folder:
        written = {**facts, "kind": "vision", **_whole(folder, segments, facts)}
        _save(lower, folder / LOWER)
        _save(upper, folder / UPPER)
        if onnx:
            difference = write_onnx(folder / ONNX, PixelsToLogits(lower, upper, steps), steps)
            written["onnx"] = {"file": ONNX, "difference": difference}
        (folder / "README.md").write_text(model_card(written), encoding="utf-8")
        write_facts(folder, written)
    return written


def _save(module: nn.Module, file: Path) -> None:
    weights = {
        name: t.detach().cpu().contiguous().clone() for name, t in module.state_dict().items()
    }
    file.write_bytes(save(weights, metadata={"format": "pt"}))


def _whole(folder: Path, segments: SplitModel, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write timm's whole model, if there is one; return the facts about it."""
    try:
        whole = whole_model(segments, **facts["segments"]["arguments"])
    except ValueError as error:
        return {"timm": None, "timm_lacks": str(error)}
    _save(whole.module, folder / WHOLE)
    described = json.dumps(_for_timm(whole, facts), indent=2) + "\n"
    (folder / "config.json").write_text(described, encoding="utf-8")
    return {"timm": {"name": whole.name, "arguments": whole.arguments}}


def _for_timm(whole: WholeModel, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with which timm loads a folder: create_model("local-dir:FOLDER")."""
    classes = facts["classes"]
    steps = facts["preprocessing"]
    size = steps["image_size"]
    excluded = ("num_classes", "in_chans")
    return {
        "architecture": whole.name,
        "num_classes": len(classes),
        "model_args": {k: v for k, v in whole.arguments.items() if k not in excluded}
        | {"in_chans": steps["channels"]},
        "pretrained_cfg": {
            "input_size": [steps["channels"], size, size],
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "mean": list(steps["mean"]),
            "std": list(steps["std"]),
            "num_classes": len(classes),
            "label_names": list(classes),
        },
    }
