"""A cell that is run, interrupted and resumed; its files; and errors for impossible cells."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.data import DataError
from flwr_splitmix.experiments import Cell, ExperimentError
from flwr_splitmix.experiments.baselines import BASELINES, WholeClient
from tests.experiments.conftest import RunCell, cell_of

TIMES = {"seconds", "steps_per_second", "slowest_node"}


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def deeper(cell: Cell) -> Cell:
    """Return the cell with an extra block for the frozen edge."""
    return replace(cell, model_options=(("depth", 2), ("patch_size", 8)))


CELLS = [
    cell_of("PSL", epochs=4),
    cell_of("CutMixSFL", epochs=4, k=2, alpha=6.0),
    cell_of("DPCutMixSL", epochs=4, k=2, alpha=6.0, sigma_s=0.5, sigma_y=0.5),
    deeper(cell_of("BatchShuffleSL", epochs=4, clients=1, kappa=0.4)),
    cell_of("Standalone", epochs=4),
    cell_of("FedAvg", epochs=4),
]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.method)
def test_an_interrupted_cell_goes_on_as_if_it_never_had_been(
    cell: Cell, run: RunCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interruption is in the third of four rounds, amid one client's training."""
    whole = run(cell, home="whole")
    kind, method = (WholeClient, "train") if cell.method in BASELINES else (SplitClient, "step")
    original = getattr(kind, method)

    @wraps(original)
    def interrupted(self: SplitClient, **arguments: Any) -> Any:
        reply = original(self, **arguments)
        if (self.order.server_round, self.order.client) == (3, 0):
            raise KeyboardInterrupt
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(kind, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(cell, home="stopped")
    rounds: list[int] = []
    resumed = run(cell, lambda event: rounds.append(event.server_round), home="stopped")
    assert rounds == [3, 4]
    assert without_times(resumed.rows) == without_times(whole.rows)


def test_rounds_that_no_checkpoint_has_are_trained_again(run: RunCell) -> None:
    """The state is that after a power cut before the first checkpoint, with rows and clients."""
    cell = cell_of("PSL", epochs=2)
    whole = run(cell, home="whole")
    cut = run(cell, home="cut")
    shutil.rmtree(cut.path / "checkpoints")
    again = run(cell, home="cut")
    assert without_times(again.rows) == without_times(whole.rows)


def test_what_a_finished_cell_leaves(run: RunCell) -> None:
    finished = run(cell_of("SFL"))
    summary = finished.summary
    assert summary is not None
    assert (summary["strategy"], summary["clients"], summary["rounds"]) == ("SFL", 3, 2)
    assert summary["evaluation"] == "central"
    assert 0 < summary["top1"] < 1
    costs = summary["client-costs"]
    # Patch projection 64 x 192 with bias, 16 position embeddings.
    assert costs["parameters"] == 64 * 192 + 192 + 16 * 192
    assert costs["exchanged_bytes"] == 4 * costs["parameters"]
    assert summary["averaging_bytes"] == 3 * 2 * costs["exchanged_bytes"]
    assert (finished.path / "config.json").exists()


def test_averaged_lower_segments_are_scored_once_and_others_for_every_client(run: RunCell) -> None:
    rows = {method: run(cell_of(method)).rows[-1] for method in ("PSL", "SFL")}
    assert (rows["PSL"]["accuracy_kind"], rows["SFL"]["accuracy_kind"]) == ("benchmark", "central")
    assert rows["PSL"]["accuracy_spread"] is not None


@pytest.mark.parametrize(
    ("cell", "error", "sentence"),
    [
        (cell_of("NoSuchSL"), ExperimentError, "unknown method 'NoSuchSL'.*CutMixSL.*FedAvg"),
        (cell_of("PSL", kappa=0.5), ExperimentError, "PSL cannot be made.*kappa"),
        (cell_of("VanillaCutMixSL", k=3), ValueError, "k is 3"),
        (cell_of("CutMixSL", k=5, clients=3), ValueError, "k is 5|5.*3|3.*5"),
        (cell_of("PSL", clients=1000), DataError, "too few for 1000 clients"),
    ],
    ids=["method", "option", "box of three", "group too large", "data"],
)
def test_what_cannot_be_run_is_one_clear_error(
    cell: Cell, error: type[Exception], sentence: str, run: RunCell
) -> None:
    with pytest.raises(error, match=sentence) as caught:
        run(cell)
    assert "\n" not in str(caught.value)
