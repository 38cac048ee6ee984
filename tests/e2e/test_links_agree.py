"""Law 4: the same seed gives the same losses and weights through LocalLink and RayLink."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from flwr_splitmix import Run
from flwr_splitmix.testing.laws import check_same_results, read_results
from tests.e2e.flower_run import Runner

pytestmark = pytest.mark.slow

SOURCES = (
    Path(__file__).parent / "links_app",
    Path(__file__).parents[2] / "examples" / "block_cutmix.py",
)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Put the app and the example's mixer into one folder, as a user would."""
    folder = tmp_path / "links_app"
    shutil.copytree(SOURCES[0], folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SOURCES[1], folder)
    return folder


@pytest.fixture
def links_app(app: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(app))
    yield importlib.import_module("links_app")
    for name in ("links_app", "block_cutmix"):
        sys.modules.pop(name, None)


def test_every_mixer_is_the_same_over_ray(
    runner: Runner, app: Path, links_app: ModuleType, tmp_path: Path
) -> None:
    over_ray, local = tmp_path / "ray", tmp_path / "local"
    run_id = runner.start({"out": str(over_ray)}, links_app.CLIENTS, app)
    ended = runner.finish(run_id, over_ray)
    assert ended.status == "finished:completed", ended.log
    for name in links_app.MAKERS:
        strategy = links_app.make_strategy(name, str(local))
        strategy.fit(links_app.make_clients(name), links_app.ROUNDS)
    pairs = list(zip(Run.all(over_ray), Run.all(local), strict=True))
    assert len(pairs) == len(links_app.MAKERS)
    for a, b in pairs:
        assert a.config == b.config
        assert all(row["accuracy_kind"] == "federated" for row in a.rows)
        check_same_results(read_results(a), read_results(b))
