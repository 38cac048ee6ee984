"""Export of a language run's trained model to a folder that transformers can load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.apps.kept.export_facts import facts_of
from flwr_splitmix.apps.kept.weights import check_finite, fitting, segment_weights
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.model import build_parts
from flwr_splitmix.apps.language.texts import class_names, tokenizer_of
from flwr_splitmix.data.texts.tokens import PROMPT
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.checkpoints import Checkpoint
from flwr_splitmix.runs.export.card import model_card
from flwr_splitmix.runs.export.folder import new_folder, write_facts
from flwr_splitmix.segments.language import LanguageParts, export
from flwr_splitmix.segments.language.cutting import PARTS
from flwr_splitmix.storage import under


def export_language(
    run: Run, folder: Path, values: Mapping[str, Any], *, client: int | None, force: bool
) -> dict[str, Any]:
    """Write the model of a run's newest checkpoint, with its tokenizer; see `export_run`.

    Adapters are merged. MixGuard's calibrator is left out, as no transformers model has one.

    Parameters
    ----------
    values
        The complete configuration of the run.
    """
    config = LanguageConfig.read(values)
    checkpoint = run.checkpoints.load()
    parts = trained_parts(run, config, checkpoint, client)
    check_finite(
        run, checkpoint, dict(zip(("head", "trunk", "tail"), parts.all_here(), strict=True))
    )
    classes = class_names(config)
    facts = {
        "kind": "language",
        **facts_of(run, config, checkpoint, client, averaged=config.averages),
        "task": config.task,
        "classes": list(classes),
        "pairs": config.task == "classification" and bool(config.second_text_column),
        "max_length": config.text_length,
        "max_new_tokens": config.max_new_tokens,
        "prompt": PROMPT if config.task == "generation" else None,
    }
    with new_folder(folder, force=force) as staging:
        export(parts, staging, tokenizer_of(config), classes=classes)
        (staging / "README.md").write_text(model_card(facts), encoding="utf-8")
        write_facts(staging, facts)
    return facts


def trained_parts(
    run: Run, config: LanguageConfig, checkpoint: Checkpoint, client: int | None
) -> LanguageParts:
    """Build the model with the weights of a checkpoint.

    Raises
    ------
    ConfigError
        Raised by `segment_weights`, or if the model cannot be built, or the checkpoint is of
        another one.
    """
    weights = segment_weights(
        run,
        checkpoint,
        client,
        shared=config.averages,
        strategy=config.strategy,
        parts="heads and tails",
    )
    parts = build_parts(config, PARTS)
    head, trunk, tail = parts.all_here()
    with fitting(run, checkpoint, "model, small-width, head-layers, lora-rank"):
        trunk.load_state_dict(under("trunk", checkpoint.tensors))
        _put(nn.ModuleDict({"head": head, "tail": tail}), weights)
    return parts


@torch.no_grad()
def _put(segments: nn.Module, weights: Mapping[str, Tensor]) -> None:
    state = segments.state_dict()
    for name, weight in weights.items():
        # copy_ would repeat a smaller one.
        if name not in state or state[name].shape != weight.shape:
            raise RuntimeError(f"there is no {name} of shape {tuple(weight.shape)}")
        state[name].copy_(weight)
