"""A run's model as one folder that transformers loads, and the command that writes it."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.model import build_parts
from flwr_splitmix.apps.language.texts import tokenizer_of
from flwr_splitmix.apps.run_config import ConfigError
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.segments.language import LanguageParts, export
from flwr_splitmix.segments.language.cutting import PARTS
from flwr_splitmix.storage import StorageError, under


def main(app: Path, arguments: Sequence[str] | None = None) -> int:
    """Export as the command line says; returns the exit code.

    Parameters
    ----------
    app
        The app's pyproject.toml: its configuration has the defaults of keys that a run lacks.
    arguments
        None: the process's own.
    """
    parser = argparse.ArgumentParser(
        description="Write a run's model as one folder for transformers."
    )
    parser.add_argument("run", help="the run's id")
    parser.add_argument("folder", type=Path, help="where the model is written")
    parser.add_argument("--run-dir", help="where runs are kept; by default as for flwr run")
    parser.add_argument(
        "--client",
        type=int,
        help="whose head and tail, by partition-id; by default those that were averaged",
    )
    chosen = parser.parse_args(arguments)
    try:
        run = Run.open(chosen.run, home=chosen.run_dir)
        export_run(run, chosen.folder, client=chosen.client, defaults=app_config(app))
    except (OSError, ValueError, RunError, StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{chosen.folder}: load it with transformers' from_pretrained")
    return 0


def app_config(app: Path) -> dict[str, Any]:
    """Return the run configuration that stands in an app's pyproject.toml."""
    described = tomllib.loads(app.read_text("utf-8"))
    config: dict[str, Any] = described["tool"]["flwr"]["app"]["config"]
    return config


def export_run(
    run: Run, folder: Path, *, client: int | None = None, defaults: Mapping[str, Any] | None = None
) -> None:
    """Write the model of a run's newest checkpoint, with its tokenizer.

    Parameters
    ----------
    client
        Whose head and tail; None: those that were averaged.
    defaults
        Values of keys that have come since a run of an earlier version.

    Raises
    ------
    ConfigError, StorageError
        As `trained_parts` does, or if the run's configuration is not one of this app.
    OSError, ValueError
        If the folder cannot be written.
    """
    config = LanguageConfig.read({**(defaults or {}), **run.config})
    export(trained_parts(run, config, client), folder, tokenizer_of(config))


def trained_parts(run: Run, config: LanguageConfig, client: int | None) -> LanguageParts:
    """Build the model with the weights of a run's newest checkpoint.

    Raises
    ------
    ConfigError
        If heads and tails were not averaged and no client is named, or its state is not here: a
        deployed node keeps it to itself.
    StorageError
        If the run has no checkpoint that can be read.
    """
    parts = build_parts(config, PARTS)
    head, trunk, tail = parts.all_here()
    kept = run.checkpoints.load()
    trunk.load_state_dict(under("trunk", kept.tensors))
    if client is not None:
        state = ClientStore(run.clients_dir).load(client, at_most=kept.round)
        if state is None:
            raise ConfigError(f"run {run.id}: there is no state of client {client} here")
        own = under("segment", state[1])
    elif config.averages:
        own = under("lower", kept.tensors)
    else:
        raise ConfigError(
            f"run {run.id}: {config.strategy} leaves heads and tails with their clients; "
            "name one with --client"
        )
    _put(nn.ModuleDict({"head": head, "tail": tail}), own)
    return parts


@torch.no_grad()
def _put(segments: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        segments.get_parameter(name).copy_(weight)
