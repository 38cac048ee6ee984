"""Mistakes of a user end a run with one clear error."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.data import client_split
from flwr_splitmix.flwr_command import FlwrError
from tests.apps import vision_app
from tests.e2e.flower_run import TINY, Ended, Runner

pytestmark = pytest.mark.slow


def check_failed(ended: Ended, sentence: str) -> None:
    """Check for a run that failed with a message, in its status and as its last logged error."""
    assert ended.status == "finished:failed"
    assert sentence in ended.details
    assert sentence in ended.log


def test_an_unknown_key_is_refused_before_anything_starts(runner: Runner) -> None:
    with pytest.raises(FlwrError, match="Invalid run configuration"):
        runner.start({"stratgy": "PSL"})
    assert not runner.simulations()


def test_a_mixing_group_larger_than_the_federation(runner: Runner, tmp_path: Path) -> None:
    ended = runner.run({**TINY, "strategy": "CutMixSL", "k": 5}, tmp_path)
    check_failed(ended, "k is 5, but only 2 clients take part in a round")
    assert ended.run is None, "a run that never began has a directory"


def test_a_client_without_data_does_not_keep_the_others_from_training(
    runner: Runner, tmp_path: Path
) -> None:
    """With a model and a mixer of another kind than the other runs'."""
    split = {"partition": "dirichlet", "partition-alpha": 0.01, "model": "pit_ti_224"}
    images = images_of(VisionConfig.read({**vision_app.run_config(), **TINY, **split}))
    sizes = [len(client_split(images, i, 12, scheme="dirichlet", alpha=0.01)[0]) for i in range(12)]
    assert 0 in sizes
    values = {**TINY, **split, "strategy": "ShuffledCutMixSFL"}
    ended = runner.run(values, tmp_path, nodes=12)
    assert ended.status == "finished:completed", ended.details
    assert ended.run is not None
    assert ended.run.summary is not None
    for row in ended.run.rows:
        assert row["clients_failed"] == 0
        assert row["clients_alive"] == 12 - sizes.count(0)
    first = sizes.index(0)
    assert ended.run.summary["clients_without_data"] == sizes.count(0)
    assert ended.log.count("not asked again in this run") == 1
    assert re.search(rf"clients? {first}\b.* (has|have) no training data", ended.log)
    assert "Traceback" not in ended.log


BROKEN_APP = {
    "pyproject.toml": """
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"

        [project]
        name = "broken"
        version = "0.1.0"
        license = "Apache-2.0"
        dependencies = []

        [tool.flwr.app]
        publisher = "tests"

        [tool.flwr.app.components]
        serverapp = "server_app:app"
        clientapp = "client_app:app"

        [tool.flwr.app.config]
    """,
    "server_app.py": """
        import torch
        from flwr.app import ArrayRecord
        from flwr.serverapp import ServerApp
        from flwr_splitmix import RayLink
        from flwr_splitmix.links import LinkError
        from flwr_splitmix.strategies import PSL

        app = ServerApp()

        @app.main()
        def main(grid, context):
            try:
                start(grid, min_nodes=3, link=RayLink(attach_timeout=5.0))
            except LinkError as error:
                print("refused:", error)
            start(grid)

        def start(grid, **options):
            strategy = PSL(torch.nn.Linear(4, 2), num_classes=2, **options)
            strategy.start(grid, initial_arrays=ArrayRecord(), num_rounds=1)
    """,
    "client_app.py": """
        from flwr_splitmix import SplitClientApp

        def client_fn(context):
            raise FileNotFoundError("this device has no camera")

        app = SplitClientApp(client_fn)
    """,
}


@pytest.fixture(scope="module")
def broken(superlink: Runner, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Start two strategies in one run: for one there are too few nodes, for one no client."""
    app = tmp_path_factory.mktemp("apps") / "broken"
    app.mkdir()
    for name, text in BROKEN_APP.items():
        (app / name).write_text(textwrap.dedent(text).lstrip())
    return superlink.finish(superlink.start({}, app=app), app.parent)


def test_too_few_nodes_end_the_wait_for_them(broken: Ended) -> None:
    # How many of the two answer in time depends on the machine.
    assert re.search(r"refused: \d nodes answered within 5 s, min-nodes is 3", broken.log)


def test_a_client_fn_that_raises_is_named_and_the_log_quotes_it(broken: Ended) -> None:
    """A run's status is on the SuperLink, and goes to trackers."""
    check_failed(broken, "client_fn raised FileNotFoundError; the log says more")
    assert "FileNotFoundError: this device has no camera" in broken.log
    assert "no camera" not in broken.details
    assert "0 clients are left, min_nodes is 1: clients 0 and 1: client_fn raised" in broken.details
