"""Writing a run's model as one folder for transformers: `python export_run.py RUN FOLDER`."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix import Run
from flwr_splitmix.apps.run_config import ConfigError
from flwr_splitmix.runs import RunError
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.segments.language import LanguageParts, export
from flwr_splitmix.storage import StorageError

from language_config import PARTS, LanguageConfig
from language_model import build_parts
from language_texts import tokenizer_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Export as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
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
        # A run of an earlier version lacks keys that have come since: they have their defaults.
        config = LanguageConfig.read({**default_config(), **run.config})
        parts = trained_parts(run, config, chosen.client)
        export(parts, chosen.folder, tokenizer_of(config))
    except (OSError, ValueError, RunError, StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{chosen.folder}: load it with transformers' from_pretrained")
    return 0


def default_config() -> dict[str, Any]:
    """Return the app's run configuration as it stands beside this file."""
    described = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text("utf-8"))
    config: dict[str, Any] = described["tool"]["flwr"]["app"]["config"]
    return config


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
    trunk.load_state_dict(_under("trunk.", kept.tensors))
    if client is not None:
        found = ClientStore(run.clients_dir).load(client, at_most=kept.round)
        if found is None:
            raise ConfigError(f"run {run.id}: there is no state of client {client} here")
        own = _under("segment.", found[1])
    elif config.averages:
        own = _under("lower.", kept.tensors)
    else:
        raise ConfigError(
            f"run {run.id}: {config.strategy} leaves heads and tails with their clients; "
            "name one with --client"
        )
    _put(nn.ModuleDict({"head": head, "tail": tail}), own)
    return parts


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


@torch.no_grad()
def _put(segments: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        segments.get_parameter(name).copy_(weight)


if __name__ == "__main__":
    sys.exit(main())
