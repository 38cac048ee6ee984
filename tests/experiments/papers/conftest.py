"""Fixtures: a tiny encoder in place of the pretrained one, and the runs of a table on texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.data.texts.generated import GENERATED
from flwr_splitmix.experiments import EXPERIMENTS, SCALES
from flwr_splitmix.experiments.cell_runs import clear, held_run
from flwr_splitmix.experiments.running import run_cell
from flwr_splitmix.experiments.texts import running as text_running
from tests.experiments.text_cells import save_tiny_encoder

RunTable = Callable[[str], dict[tuple[str, str], dict[str, Any]]]


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with an encoder of three layers, random weights and a tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-encoder")
    save_tiny_encoder(folder)
    return folder


@pytest.fixture(scope="session")
def text_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home directory in which tables on texts share their runs."""
    return tmp_path_factory.mktemp("text-runs")


@pytest.fixture
def run_table(tiny_encoder: Path, text_runs: Path, monkeypatch: pytest.MonkeyPatch) -> RunTable:
    """Run all cells of an experiment at scale smoke; return their summaries by place."""
    folder_of = text_running.model_folder
    monkeypatch.setattr(
        text_running,
        "model_folder",
        lambda model: str(tiny_encoder) if model in text_running.PACKAGES else folder_of(model),
    )

    def call(name: str) -> dict[tuple[str, str], dict[str, Any]]:
        summaries = {}
        for entry, cell in EXPERIMENTS[name].cells(SCALES["smoke"]):
            with held_run(cell, text_runs, GENERATED) as run:
                if run.status != "finished":  # places, and tables, may share a run
                    run_cell(cell, run, GENERATED, device="cpu", on_round=lambda event: None)
                    clear(run)
            summaries[entry.place] = run.summary or {}
        return summaries

    return call
