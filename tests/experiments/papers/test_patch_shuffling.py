"""Tables of Patch Shuffling at scale smoke: an edge's costs, and other defences than shuffling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flwr_splitmix.experiments import SCALES, variant
from flwr_splitmix.experiments.cell_runs import clear
from flwr_splitmix.experiments.papers.patch_shuffling import (
    ADVERSARIAL,
    BLURRED,
    CLIPPED_NOISE,
    GAUSSIAN_NOISE,
    TABLE_1,
    TABLE_2,
    TABLE_6,
)
from flwr_splitmix.experiments.report import make_tables
from flwr_splitmix.segments.vision.tokens_to_token import TokensToToken
from tests.experiments.conftest import RunCell

SMOKE = SCALES["smoke"]


def test_an_edge_with_a_block_costs_what_the_block_costs_shuffled_or_not(
    run: RunCell, tmp_path: Path
) -> None:
    for _, cell in TABLE_6.cells(SMOKE, epochs=1):
        clear(run(cell))
    (table,) = make_tables(TABLE_6, SMOKE, tmp_path / "home")
    macs = {line.entry.row: line.mean for line in table.lines}
    memory = {line.entry.row: line.further for line in table.lines}
    # 16 patches of width 192: projection, queries to values, attention, its projection, MLP.
    width, patches, hidden = 192, 16, 768
    projection = patches * 64 * width
    block = patches * (4 * width**2 + 2 * width * hidden) + 2 * patches**2 * width
    assert macs["PS"] == macs["BS (kappa = 0.4)"] == (projection + block) / 1e6
    assert macs["PS+"] == projection / 1e6
    # Soft splits to 16 x 16 and 8 x 8 tokens of width 64, and to the 16 patches.
    tokens = sum(n * (192 * w + 3 * 64**2) + 2 * n**2 * 64 for n, w in ((256, 9), (64, 576)))
    assert macs["PS, tokens-to-token"] == (tokens + patches * 576 * width + block) / 1e6
    assert memory["Adv"] > memory["SL"] > memory["PS"] > memory["PS+"] > ((0.0,),)
    assert {claim.verdict for claim in table.claims} == {"agrees"}


def test_the_defences_of_table_1_are_trained_as_rows(run: RunCell) -> None:
    plain = run(SMOKE.cell(variant("PSL", clients=1), epochs=1))
    losses = {}
    for defence in (ADVERSARIAL, BLURRED, CLIPPED_NOISE, GAUSSIAN_NOISE):
        cell = SMOKE.cell(defence, track="shuffling", epochs=1)
        assert cell.id != plain.id
        losses[defence] = run(cell).rows[-1]["loss"]
    assert len({round(loss, 6) for loss in losses.values()}) == 4  # each trains differently


def test_rows_with_tokens_to_token_are_trained_with_that_embedding(run: RunCell) -> None:
    rows = {entry.row: cell for table in (TABLE_1, TABLE_2) for entry, cell in table.cells(SMOKE)}
    for row in ("PS", "BS (kappa = 0.4)", "BS (kappa = 0.75)"):
        plain, with_embedding = rows[row], rows[f"{row}, tokens-to-token"]
        assert with_embedding == replace(plain, model_options=with_embedding.model_options)
        options = dict(plain.model_options)
        assert dict(with_embedding.model_options) == {**options, "embedding": "tokens-to-token"}
        assert (with_embedding.words[-1], "tokens-to-token" in plain.words) == (
            "tokens-to-token",
            False,
        )
    with_embedding = rows["BS (kappa = 0.4), tokens-to-token"]
    losses = [run(cell).rows[-1]["loss"] for cell in (with_embedding, rows["BS (kappa = 0.4)"])]
    assert losses[0] != losses[1]
    summary = run(with_embedding).summary
    assert summary is not None
    embedding = TokensToToken(1, 192, 8)
    plain_projection = 8 * 8 * 192 + 192
    difference = sum(p.numel() for p in embedding.parameters()) - plain_projection
    plain_costs = (run(rows["BS (kappa = 0.4)"]).summary or {})["client-costs"]
    assert summary["client-costs"]["parameters"] - plain_costs["parameters"] == difference


def test_weights_of_a_pretrained_model_are_not_asked_of_tokens_to_token() -> None:
    paper = SCALES["paper"]
    by_row = {entry.row: dict(cell.model_options) for entry, cell in TABLE_2.cells(paper)}
    plain, with_embedding = by_row["PS"], by_row["PS, tokens-to-token"]
    assert plain["pretrained"] is True
    del plain["pretrained"]
    assert with_embedding == {**plain, "embedding": "tokens-to-token"}


def test_another_cut_is_another_cell() -> None:
    behind = SMOKE.cell(variant("PSL", clients=1, cut_at="blocks.0"))
    before = SMOKE.cell(variant("PSL", clients=1))
    assert dict(behind.model_options) == {**dict(before.model_options), "cut_at": "blocks.0"}
    assert behind.id != before.id
