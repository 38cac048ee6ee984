"""Lists of a paper's experiments: what was run, what was not, and what cannot be."""

from __future__ import annotations

import re
from pathlib import Path

from flwr_splitmix.experiments import SCALES
from flwr_splitmix.experiments.pages.papers import experiments_block, overview_block

RESULTS = Path(__file__).parents[3] / "docs" / "results"


def test_an_experiment_without_a_place_that_can_be_run_is_not_offered_and_not_counted() -> None:
    rows = experiments_block("Patch Shuffling", []).splitlines()[2:]
    states = {row.split("`")[1]: row.split(" | ")[-2] for row in rows}
    assert [name for name, run in states.items() if run == "not offered"] == [
        "patch-shuffling-table3-privacy"
    ]
    assert set(states.values()) == {"not run", "not offered"}
    (overview,) = (
        row for row in overview_block(SCALES["cpu"], []).splitlines() if "[Patch Shuffling]" in row
    )
    assert f"0 of {len(rows) - 1}" in overview


def test_the_factor_between_the_epsilons_of_table_5_is_that_of_its_rows() -> None:
    page = (RESULTS / "dp-cutmixsl.md").read_text(encoding="utf-8")
    (table,) = re.findall(
        r"<!-- table: dp-cutmixsl-table5 cpu -->(.*?)<!-- end of block -->", page, re.S
    )
    rows = re.findall(r"\| ([\d.e+]+) \| ([\d.]+) \| [\d.]+ \|$", table, re.M)
    factors = [float(ours) / float(papers) for ours, papers in rows]
    assert len(factors) > 30
    low, high = (f"{round(end, -2):,.0f}" for end in (min(factors), max(factors)))
    assert f"is {low} to {high} times the paper's" in " ".join(page.split())
