"""Tables of Patch Shuffling at scale smoke: an edge's costs, and other defences than shuffling."""

from __future__ import annotations

from pathlib import Path

from flwr_splitmix.experiments import SCALES, variant
from flwr_splitmix.experiments.papers.patch_shuffling import (
    ADVERSARIAL,
    BLURRED,
    CLIPPED_NOISE,
    GAUSSIAN_NOISE,
    TABLE_6,
)
from flwr_splitmix.experiments.report import make_tables
from tests.experiments.conftest import RunCell

SMOKE = SCALES["smoke"]


def test_an_edge_with_a_block_costs_what_the_block_costs_shuffled_or_not(
    run: RunCell, tmp_path: Path
) -> None:
    for _, cell in TABLE_6.cells(SMOKE, epochs=1):
        run(cell)
    (table,) = make_tables(TABLE_6, SMOKE, tmp_path / "home")
    macs = {line.entry.row: line.mean for line in table.lines}
    memory = {line.entry.row: line.further for line in table.lines}
    # 16 patches of width 192: projection, queries to values, attention, its projection, MLP.
    width, patches, hidden = 192, 16, 768
    projection = patches * 64 * width
    block = patches * (4 * width**2 + 2 * width * hidden) + 2 * patches**2 * width
    assert macs["PS"] == macs["BS (kappa = 0.4)"] == (projection + block) / 1e6
    assert macs["PS+"] == projection / 1e6
    assert memory["Adv"] > memory["SL"] > memory["PS"] > memory["PS+"] > ((0.0,),)
    assert {claim.verdict for claim in table.claims} == {"agrees"}


def test_the_defences_of_table_1_are_trained_as_rows(run: RunCell) -> None:
    plain = run(SMOKE.cell(variant("PSL", clients=1), epochs=1))
    losses = {}
    for made in (ADVERSARIAL, BLURRED, CLIPPED_NOISE, GAUSSIAN_NOISE):
        cell = SMOKE.cell(made, track="shuffling", epochs=1)
        assert cell.id != plain.id
        losses[made] = run(cell).rows[-1]["loss"]
    assert len({round(loss, 6) for loss in losses.values()}) == 4  # each trains differently


def test_another_cut_is_another_cell() -> None:
    behind = SMOKE.cell(variant("PSL", clients=1, cut_at="blocks.0"))
    before = SMOKE.cell(variant("PSL", clients=1))
    assert dict(behind.model_options) == {**dict(before.model_options), "cut_at": "blocks.0"}
    assert behind.id != before.id
