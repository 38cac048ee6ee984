"""Export of a vision run's trained model to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flwr_splitmix.apps.kept.export_facts import facts_of
from flwr_splitmix.apps.kept.weights import check_finite, fitting, segment_weights
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.inputs import recorded_inputs
from flwr_splitmix.apps.vision.model import MODEL_KEYS, split_of
from flwr_splitmix.apps.vision.ushape import first_parts, load_part, whole_call
from flwr_splitmix.data.images.preprocessing import Preprocessing
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.export.onnx_file import check_packages
from flwr_splitmix.runs.export.vision import write_vision
from flwr_splitmix.segments import SPLITS
from flwr_splitmix.storage import under


def export_vision(
    run: Run,
    folder: Path,
    values: Mapping[str, Any],
    *,
    client: int | None,
    onnx: bool,
    force: bool,
) -> dict[str, Any]:
    """Write the model of a run's newest checkpoint; see `export_run`.

    Parameters
    ----------
    values
        The complete configuration of the run.
    """
    if onnx:
        check_packages()
    config = VisionConfig.read(values)
    checkpoint = run.checkpoints.load()
    inputs = recorded_inputs(run, config)
    channels = Preprocessing.from_facts(inputs["preprocessing"]).channels
    call = whole_call if config.ushape else split_of
    made_by, arguments = call(config, len(inputs["classes"]), channels)
    segments = SPLITS[made_by](**arguments, seed=0)
    weights = segment_weights(
        run,
        checkpoint,
        client,
        shared=config.averages or made_by == "split_shuffled_edge",
        strategy=config.strategy,
        parts="heads and tails" if config.ushape else "lower segments",
    )
    frozen: dict[str, Tensor] = {}
    if config.learns == "tail":  # no checkpoint has the head
        frozen = first_parts(config, len(inputs["classes"]), channels).head.state_dict()
    with fitting(run, checkpoint, MODEL_KEYS):
        if config.ushape:
            load_part(segments.lower, frozen | under("head", weights))
            load_part(segments.upper, under("trunk", checkpoint.tensors) | under("tail", weights))
        else:
            segments.lower.load_state_dict(weights)
            segments.upper.load_state_dict(under("upper", checkpoint.tensors))
    check_finite(
        run, checkpoint, {"lower segment": segments.lower, "upper segment": segments.upper}
    )
    facts = {
        **facts_of(run, config, checkpoint, client, averaged=config.averages),
        **inputs,
        "segments": {"made_by": made_by, "arguments": arguments},
    }
    return write_vision(folder, segments, facts, onnx=onnx, force=force)
