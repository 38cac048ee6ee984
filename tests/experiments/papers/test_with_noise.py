"""Cells with noise: the papers' noise, and the accountant's epsilon beside the papers'."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.experiments import EXPERIMENTS, SCALES, Cell, Entry, Experiment, tables, variant
from flwr_splitmix.experiments.papers.dp_cutmixsl_utility import BOUND, DELTA, EPSILONS, WITH_NOISE
from flwr_splitmix.experiments.report import make_tables
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.accountant import epsilon_from_rdp, rdp_curve
from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import STRATEGIES
from flwr_splitmix.testing.toy import Toy
from tests.experiments.conftest import SMALL, RunCell, cell_of

SMOKE = SCALES["smoke"]
NOISE_VALUES = {value.name for value in fields(GaussianNoise)}
SIGMA = 0.5


def epsilon(rho: float) -> float:
    return float(epsilon_from_rdp(rdp_curve(rho), DELTA)[0])


def options_of(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        entry.place: dict(entry.variant.options)
        for entry in EXPERIMENTS[name].entries
        if entry.variant is not None
    }


# The experiments' options.


def test_table_5_has_the_variances_and_epsilons_that_are_printed() -> None:
    printed = {
        "DP-SL": "246 164 123 98.5 80 70.5 61 55 49",
        "DP-CutMixSL": "66 47 36 29 25 21 19 17 15",
        "DP-MixSL": "60 43 33 27 23 20 17 15 14",
    }
    printed["DP-CutMixSL, label noise as in Table 1"] = printed["DP-CutMixSL"]
    entries = {entry.place: entry for entry in EXPERIMENTS["dp-cutmixsl-table5"].entries}
    options = options_of("dp-cutmixsl-table5")
    assert len(entries) == 36
    for row, numbers in printed.items():
        for expected, number in zip(EPSILONS, numbers.split(), strict=True):
            place = row, f"{number}/255"
            assert entries[place].epsilon == expected
            assert options[place]["sigma_s"] == options[place]["sigma_y"]
            assert options[place]["sigma_s"] ** 2 == pytest.approx(float(number) / 255, rel=1e-5)


def test_what_has_an_epsilon_is_clipped_to_what_the_paper_assumes() -> None:
    for name in ("fig5a", "fig5c", "fig11a", "table5"):
        for options in options_of(f"dp-cutmixsl-{name}").values():
            assert (options["clip"], options["clip_norm"]) == ("range", BOUND)
            assert options["delta"] == DELTA
    for name in ("dp-cutmixsl-fig5a-unclipped", "cutmixsl-fig9"):
        assert {options.get("clip", "none") for options in options_of(name).values()} == {"none"}


def test_labels_have_their_noise_before_they_are_scaled_as_algorithm_1_has_it() -> None:
    """DP-CutMixSL, equation 1; Table 1 has it on the scaled labels."""
    for name in ("fig5a", "fig5a-unclipped", "fig5c", "fig11a", "table5"):
        for (row, _), options in options_of(f"dp-cutmixsl-{name}").items():
            assert options.get("label_noise") == ("before" if row == "DP-CutMixSL" else None), row


def test_figures_and_table_share_their_runs_and_no_noise_is_the_run_without_any() -> None:
    def ids(name: str) -> set[str]:
        return {cell.id for _, cell in EXPERIMENTS[name].cells(SCALES["cpu"])}

    assert ids("dp-cutmixsl-table5") == ids("dp-cutmixsl-fig5a")
    assert not ids("dp-cutmixsl-fig5a") & ids("dp-cutmixsl-fig5a-unclipped")
    assert len(ids("dp-cutmixsl-fig11a") & ids("dp-cutmixsl-fig5a")) == 9
    assert len(ids("cutmixsl-fig9") & ids("cutmixsl-table1")) == 3


def test_the_papers_epsilons_where_none_is_printed_follow_from_its_formulas() -> None:
    """DP-CutMixSL, Theorem 1 with the values of Table 2; 8.5172 is log(1/delta)."""
    epsilons = {entry.place: entry.epsilon for entry in EXPERIMENTS["dp-cutmixsl-fig11a"].entries}
    for row, slope in (("DP-SL", 2.225), ("DP-MixSL", 0.55625), ("DP-CutMixSL", 0.6125)):
        exponent = slope * 255 / 66 + 8.5172
        expected = math.log(1 + 2 / 10 * (math.exp(exponent) - 1))
        assert epsilons[row, "66/255"] == pytest.approx(expected, rel=1e-4)


def test_new_options_have_changed_no_cell_that_there_was() -> None:
    """Stored runs are found by these ids."""
    entries = EXPERIMENTS["cutmixsl-table2-joint"].cells(SCALES["cpu"], source="fashion_mnist")
    ids = {entry.place: cell.id for entry, cell in entries}
    assert ids["Parallel SL", "n = 10"] == "psl-vit_tiny-n10-s0-cd7cffe3df84"
    assert ids["SplitFed", "n = 10"] == "sfl-vit_tiny-n10-s0-7a51c4a6c512"
    assert cell_of("DPSL", sigma_s=1, sigma_y=1) == cell_of("DPSL", sigma_s=1.0, sigma_y=1.0)


# The experiments' runs.

NOISE: dict[str, Any] = {
    "sigma_s": SIGMA, "sigma_y": SIGMA, "clip": "range", "clip_norm": BOUND, "delta": DELTA,
}  # fmt: skip
EVEN: dict[str, Any] = {**NOISE, "k": 2, "alpha": None}
E_S, E_Y = BOUND**2 * 16 * 192 / (2 * SIGMA**2), 2 / (2 * SIGMA**2)
"""Divergences per order for a sample of 16 patches of 192 numbers, and for its label."""

CELLS: dict[str, tuple[Cell, float]] = {
    "DP-SL": (cell_of("DPSL", clients=2, **NOISE), E_S + E_Y),
    "DP-MixSL": (cell_of("DPMixSL", clients=2, **EVEN), (E_S + E_Y) / 4),
    "DP-CutMixSL": (cell_of("DPCutMixSL", clients=2, **EVEN), E_S / 2 + E_Y / 4),
    "unclipped": (
        cell_of("DPSL", clients=2, sigma_s=SIGMA, sigma_y=SIGMA, clip="none"), math.inf,
    ),
    "PSL with noise": (
        cell_of("PSL", clients=2, sigma_s=SIGMA, sigma_y=SIGMA, clip="none"), math.inf,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_a_run_with_noise_has_the_accountants_epsilon(name: str, run: RunCell) -> None:
    cell, slope = CELLS[name]
    finished = run(cell)
    spent = [row["epsilon"] for row in finished.rows]
    expected = [slope if math.isinf(slope) else epsilon(passes * slope) for passes in (1, 2)]
    assert spent == pytest.approx(expected, rel=1e-9)
    assert finished.config["options"]["sigma_s"] == SIGMA


def test_noise_without_its_size_is_one_clear_error(run: RunCell) -> None:
    with pytest.raises(ValueError, match="noise needs sigma_y"):
        run(cell_of("DPSL", sigma_s=1.0))
    with pytest.raises(ValueError, match=r"sigma_s is -1\.0; a standard"):
        run(cell_of("DPSL", sigma_s=-1.0, sigma_y=1.0))


@pytest.mark.parametrize("experiment", WITH_NOISE, ids=lambda experiment: experiment.name)
def test_every_method_can_be_made_with_its_noise(experiment: Experiment) -> None:
    upper = Toy().upper()
    for _, cell in experiment.cells(SMOKE):
        options: dict[str, Any] = dict(cell.options)
        noise = {name: options.pop(name) for name in set(options) & NOISE_VALUES}
        gaussian_noise = GaussianNoise.from_plain(noise) if noise else None
        strategy = STRATEGIES[cell.method](upper, device="cpu", noise=gaussian_noise, **options)
        assert (strategy.ledger is not None) == bool(noise)


# The experiments' tables.

TOY = Experiment(
    "toy",
    "a toy",
    "nowhere",
    (
        Entry("DP-SL", "here", variant("DPSL", NOISE, clients=2), epsilon=1.5),
        Entry("unclipped", "here", variant("DPSL", {**NOISE, "clip": "none"}, clients=2)),
        Entry("PSL", "here", variant("PSL", clients=2)),
        Entry("DP-MixSL", "here", variant("DPMixSL", EVEN, clients=2), epsilon=2.0),
    ),
)


def finish(home: Path, row: str, seed: int, **last: float) -> None:
    (cell,) = [cell for entry, cell in TOY.cells(SMOKE, seeds=[seed]) if entry.row == row]
    run = Run.create(cell.config, name="cell", home=home)
    run.append_round({"round": 1, **dict.fromkeys(last, 0.5)})
    run.append_round({"round": 2, **last})
    sums = {"uplink_bytes": 0, "downlink_bytes": 0, "rounds": 2}
    run.write_summary({"top1": 0.25, **sums})


def test_the_accountants_epsilon_stands_beside_the_papers(tmp_path: Path) -> None:
    finish(tmp_path, "DP-SL", 0, epsilon=361.25)
    finish(tmp_path, "DP-SL", 1, epsilon=363.5)
    finish(tmp_path, "unclipped", 0, epsilon=math.inf)
    finish(tmp_path, "PSL", 0)
    (table,) = make_tables(TOY, SMOKE, tmp_path)
    assert [line.epsilon for line in table.lines] == [363.5, math.inf, None, None]
    at = tables.headings(table).index("epsilon")
    assert tables.headings(table)[at : at + 2] == ["epsilon", "paper's epsilon"]
    assert [row[at : at + 2] for row in tables.rows(table)] == [
        ["363.5", "1.5"], ["none", "-"], ["-", "-"], ["-", "2"],
    ]  # fmt: skip
    assert "| DP-SL | here | 25.00 ± 0.00 | 2 seeds | 363.5 | 1.5 |" in tables.to_markdown([table])
    (report,) = json.loads(json.dumps(tables.to_json([table]), allow_nan=False))
    assert [(line["epsilon"], line["paper_epsilon"]) for line in report["lines"]] == [
        (363.5, 1.5), ("inf", None), (None, None), (None, 2.0),
    ]  # fmt: skip


def test_a_table_without_noise_has_no_such_columns(tmp_path: Path) -> None:
    (table,) = make_tables(EXPERIMENTS["cutmixsl-table1"], SMOKE, tmp_path, dataset=SMALL)
    assert not any("epsilon" in heading for heading in tables.headings(table))
