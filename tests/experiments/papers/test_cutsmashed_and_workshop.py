"""Cells of CutMixSL's Figure 2 and of the workshop paper's Figures 3a and 3b are trained."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flwr_splitmix.experiments import EXPERIMENTS, SCALES, Cell
from flwr_splitmix.runs import Run
from tests.experiments.conftest import RunCell

SMOKE = SCALES["smoke"]


def cell_at(name: str, row: str, column: str) -> Cell:
    cells = EXPERIMENTS[name].cells(SMOKE, epochs=1)
    return next(cell for entry, cell in cells if entry.place == (row, column))


def uplink(run: Run) -> float:
    assert run.summary is not None
    return float(run.summary["uplink_bytes"])


def test_cutsmashed_data_are_trained_with_and_sent_in_part(run: RunCell) -> None:
    row = "SFL, fixed positions"
    cut, whole = (run(cell_at("cutmixsl-fig2", row, column)) for column in ("lam = 0.2", "lam = 1"))
    assert math.isfinite(cut.rows[-1]["loss"])
    assert cut.rows[-1]["loss"] != whole.rows[-1]["loss"]
    assert uplink(cut) < uplink(whole)


def test_the_workshops_noise_is_trained_with_and_has_an_epsilon(run: RunCell) -> None:
    """Figure 3a by variance, of which more is a smaller epsilon; Figure 3b by group."""
    quiet, loud = (
        run(cell_at("dp-cutmix-workshop-fig3a", "DP-CutMixSL", column)).rows[-1]
        for column in ("1/255", "16/255")
    )
    assert 0 < loud["epsilon"] < quiet["epsilon"] < math.inf
    assert loud["loss"] != quiet["loss"]
    of_three = run(cell_at("dp-cutmix-workshop-fig3b", "DP-MixSL", "k = 3")).rows[-1]
    assert math.isfinite(of_three["loss"])
    assert 0 < of_three["epsilon"] < math.inf


@pytest.mark.parametrize(("name", "places"), [("fig3a", 15), ("fig3b", 8)])
def test_mixups_noise_is_scaled_as_appendix_b2_has_it(name: str, places: int) -> None:
    """The sum of k uploads has noise of sigma / sqrt(k); on scaled numbers, of sigma sqrt(k)."""
    options: dict[tuple[str, str], dict[str, Any]] = {
        entry.place: dict(entry.variant.options)
        for entry in EXPERIMENTS[f"dp-cutmix-workshop-{name}"].entries
        if entry.variant is not None
    }
    mixed = [(place, settings) for place, settings in options.items() if place[0] == "DP-MixSL"]
    for (_, column), settings in mixed:
        scaled = options["DP-MixSL, noise on scaled numbers", column]
        assert settings["sigma_s"] * settings["k"] == pytest.approx(scaled["sigma_s"], rel=1e-4)
        assert (settings["sigma_y"], settings["label_noise"]) == (scaled["sigma_y"], "before")
    assert len(options) == places + len(mixed)
