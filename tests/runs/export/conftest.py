"""Tiny runs of the vision app, done once, and the command line on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from flwr_splitmix import Run
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.apps.vision.inputs import record_inputs
from flwr_splitmix.cli import app
from flwr_splitmix.data.images.idx import read_idx_split
from flwr_splitmix.data.images.sources import _SHIPPED_FOLDER
from tests.apps.vision_fit import Fitted, fit, needed, read

Splitmix = Callable[..., Result]


@dataclass(frozen=True)
class Exported:
    """A run, and what of it is still in memory."""

    run: Run
    fitted: Fitted


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def make(home: Path) -> Callable[..., Exported]:
    """Return what does a run of the app, once for each configuration."""
    exports: dict[str, Exported] = {}

    def once(strategy: str, **values: object) -> Exported:
        key = f"{strategy} {values}"
        if key not in exports:
            values = {"depth": 1, "lr": 0.01, "warmup_epochs": 0.0, **needed(strategy), **values}
            fitted = fit(home, n=2, strategy=strategy, **values)
            run = fitted.strategy.recorder.run
            assert run is not None
            record_inputs(run, images_of(read(strategy=strategy, **values)))
            exports[key] = Exported(run, fitted)
        return exports[key]

    return once


@pytest.fixture
def splitmix(home: Path) -> Splitmix:
    def call(*arguments: str | Path) -> Result:
        words = [str(argument) for argument in arguments]
        return CliRunner().invoke(app, words, env={"SPLITMIX_HOME": str(home)})

    return call


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the first test images of the shipped set as PNG files."""
    folder = tmp_path_factory.mktemp("pictures")
    files = []
    for number, pixels in enumerate(read_idx_split(_SHIPPED_FOLDER, "test").images[:3]):
        files.append(folder / f"{number}.png")
        Image.fromarray(pixels[0]).save(files[-1])
    return files
