"""Law 4 for examples of several labels: over a stream it is the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix import Run, adamw
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.strategies import SFL, CutMixSL
from flwr_splitmix.testing.agreement import check_same_results, read_results
from flwr_splitmix.testing.toy import Toy
from tests.links.fake_grid import FakeGrid, OneAtATime, OnFakeGrid, toy_app
from tests.links.kept import results

TOY = Toy(clients=4, multi_label=True, tests=6)


@pytest.mark.parametrize("kind", [CutMixSL, SFL])
def test_over_a_stream_it_is_the_same_run(kind: Any, tmp_path: Path) -> None:
    usual: dict[str, Any] = {
        "optimizer": adamw(0.01),
        "device": "cpu",
        "seed": 3,
        "multi_label": True,
        "evaluation": "federated",
    }
    local = kind(TOY.upper(), run=Run.create({}, name="local", home=tmp_path), **usual)
    local.fit(TOY.make_clients(adamw(0.01)), 2)
    run = Run.create({}, name="stream", home=tmp_path)
    grid = FakeGrid(
        toy_app(TOY, optimizer=adamw(0.01), kind=OneAtATime),
        TOY.clients,
        **{"state-dir": str(tmp_path / "nodes")},
    )
    link = OnFakeGrid(StreamLink(address="127.0.0.1:0", attach_timeout=60, run=run.id), grid)
    strategy = kind(TOY.upper(), run=run, link=link, **usual)
    strategy.start(None, to_arrays(TOY.lower().state_dict()), 2)
    grid.wait()
    assert local.recorder.run is not None
    assert -1 <= local.recorder.run.rows[-1]["eval_matthews"] <= 1
    check_same_results(read_results(local.recorder.run), results(run, tmp_path / "nodes"))
