"""Facts about a run for the card of its exported model."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from flwr_splitmix.apps.configuration.run_config import AppConfig
from flwr_splitmix.files.json_values import finite
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.checkpoints import Checkpoint
from flwr_splitmix.runs.epsilon import counts_mixtures, epsilon_facts


def parts_of(meta: Mapping[str, Any]) -> int:
    """Return into how many parts the data were divided, as nodes said; else how many trained."""
    counts = set(meta.get("partitions", {}).values()) - {0}
    return counts.pop() if len(counts) == 1 else len(meta["trained"])


def facts_of(
    run: Run, config: AppConfig, checkpoint: Checkpoint, client: int | None, *, averaged: bool
) -> dict[str, Any]:
    """Return the model card's facts about a run at a checkpoint, for either app."""
    values = config.model_dump(by_alias=True)
    rows = [row for row in run.rows if row["round"] <= checkpoint.round]
    measured = [row for row in rows if row["accuracy"] is not None]
    return {
        "run": run.id,
        "round": checkpoint.round,
        "rounds": values["num-server-rounds"],
        "client": client,
        "model": _public_name(values["model"]),
        "strategy": values["strategy"],
        "dataset": _public_name(values["dataset"]),
        "partition": values["partition"],
        "clients": len(checkpoint.meta["trained"]),
        "parts": parts_of(checkpoint.meta),
        "seed": values["seed"],
        "averaged": averaged,
        "accuracy": None
        if not measured
        else {
            "value": measured[-1]["accuracy"],
            "kind": measured[-1]["accuracy_kind"],
            "round": measured[-1]["round"],
        },
        **finite(
            epsilon_facts(
                rows[-1] if rows else {}, values["strategy"], mixtures=counts_mixtures(values)
            )
        ),
        "delta": values.get("delta"),
        "versions": {"flwr-splitmix": version("flwr-splitmix"), "torch": torch.__version__},
    }


def _public_name(source: str) -> str:
    """Return a model's or data set's name; of an absolute path only the last part.

    Cards are published, and must not contain local paths.
    """
    return Path(source).name if Path(source).expanduser().is_absolute() else source
