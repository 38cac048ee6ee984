"""Reports: means and spreads of existing runs, and the claims that these support."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.experiments import (
    SCALES,
    Cell,
    Entry,
    Experiment,
    Ordering,
    tables,
    variant,
)
from flwr_splitmix.experiments.experiment import CIFAR, FASHION, TableScore
from flwr_splitmix.experiments.report import Table, make_tables
from flwr_splitmix.experiments.scales import COMPOSED
from flwr_splitmix.runs import Run

SMOKE = SCALES["smoke"]
SMALL = "fashion-mnist-small"

TOY = Experiment(
    "toy",
    "a toy",
    "nowhere",
    (
        Entry("PSL", "n = 2", variant("PSL", clients=2), {CIFAR: 50.0, FASHION: 60.0}),
        Entry("SFL", "n = 2", variant("SFL", clients=2), {CIFAR: 55.0}),
        Entry("CutMixSL", "n = 2", variant("CutMixSL", clients=2)),
        Entry("other", "n = 2", None, {CIFAR: 1.0}),
    ),
    (
        Ordering(("PSL", "n = 2"), ("SFL", "n = 2")),
        Ordering(("SFL", "n = 2"), ("PSL", "n = 2"), "uplink"),
        Ordering(("PSL", "n = 2"), ("CutMixSL", "n = 2")),
        Ordering(("PSL", "n = 2"), ("other", "n = 2")),
        Ordering(("SFL", "n = 2"), ("PSL", "n = 2"), datasets=(CIFAR,)),
    ),
    "a note",
)
COSTS = {
    "parameters": 10,
    "parameter_bytes": 1_000_000,
    "optimizer_bytes": 2_000_000,
    "activation_bytes": 3_000_000,
    "forward_macs": 4_000_000,
    "training_macs": 5_000_000,
    "exchanged_bytes": 0,
}


def cell_of(row: str, **options: Any) -> Cell:
    cells = {
        entry.row: cell
        for entry, cell in TOY.cells(SMOKE, seeds=[options.pop("seed", 0)], **options)
    }
    return cells[row]


def finish(home: Path, cell: Cell, top1: float, **summary: Any) -> None:
    run = Run.create(cell.config, name="cell", home=home)
    bytes_ = {"uplink_bytes": 8_000_000, "downlink_bytes": 4_000_000, "rounds": 2}
    run.write_summary({"top1": top1, **bytes_, "client-costs": COSTS, **summary})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    finish(tmp_path, cell_of("PSL"), 0.40)
    finish(tmp_path, cell_of("PSL", seed=1), 0.43)
    finish(tmp_path, cell_of("SFL"), 0.41, averaging_bytes=2_000_000)
    Run.create(cell_of("SFL", seed=1).config, name="begun", home=tmp_path)
    (toy_table,) = make_tables(TOY, SMOKE, tmp_path)
    return toy_table


def test_means_and_spreads_are_over_the_finished_seeds(table: Table) -> None:
    psl, sfl, cutmix, other = table.lines
    assert (psl.seeds, psl.values) == ((0, 1), (40.0, 43.0))
    assert psl.mean == pytest.approx(41.5)
    assert psl.spread == pytest.approx(statistics.stdev([40.0, 43.0]))
    assert (sfl.mean, sfl.spread) == (41.0, None)
    assert [line.state for line in table.lines] == [
        "2 seeds", "1 seed, 1 begun", "not run", "not offered",
    ]  # fmt: skip
    assert (cutmix.mean, other.mean) == (None, None)


def test_bytes_are_those_of_an_epoch_with_what_is_averaged(table: Table) -> None:
    psl, sfl, cutmix, _ = table.lines
    assert (psl.uplink, psl.downlink) == (4_000_000, 2_000_000)
    assert (sfl.uplink, sfl.downlink) == (5_000_000, 3_000_000)
    assert cutmix.uplink is None


def test_claims_agree_disagree_or_wait(table: Table) -> None:
    verdicts = {str(claim.ordering): (claim.verdict, claim.margin) for claim in table.claims}
    assert verdicts == {
        "PSL < SFL (n = 2)": ("agrees", pytest.approx(1.0)),
        "uplink of SFL < PSL (n = 2)": ("disagrees", pytest.approx(-1_000_000)),
        "PSL < CutMixSL (n = 2)": ("not run", None),
        "PSL < other (n = 2)": ("not offered", None),
    }, "a claim for another data set does not count"


def test_a_claim_compares_the_seeds_that_both_places_have(tmp_path: Path) -> None:
    """The mean of both seeds of PSL, 45, is above SFL's 42; of seed 0 alone PSL is below."""
    finish(tmp_path, cell_of("PSL"), 0.40)
    finish(tmp_path, cell_of("PSL", seed=1), 0.50, uplink_bytes=80_000_000)
    finish(tmp_path, cell_of("SFL"), 0.42)
    (table,) = make_tables(TOY, SMOKE, tmp_path)
    accuracy, uplink, *_ = table.claims
    assert accuracy.verdict == "agrees"
    assert accuracy.margin == pytest.approx(2.0)
    assert (uplink.ordering.measure, uplink.margin) == ("uplink", 0.0)


def test_places_without_a_seed_in_common_are_compared_by_their_own_means(tmp_path: Path) -> None:
    finish(tmp_path, cell_of("PSL"), 0.40)
    finish(tmp_path, cell_of("PSL", seed=1), 0.50)
    finish(tmp_path, cell_of("SFL", seed=2), 0.42)
    (table,) = make_tables(TOY, SMOKE, tmp_path)
    assert table.claims[0].verdict == "disagrees"
    assert table.claims[0].margin == pytest.approx(-3.0)


def test_every_data_set_and_length_that_was_begun_is_a_table(tmp_path: Path) -> None:
    finish(tmp_path, cell_of("PSL"), 0.40)
    finish(tmp_path, cell_of("PSL", epochs=9), 0.50)
    finish(tmp_path, cell_of("PSL", source="uoft-cs/cifar10", epochs=9), 0.30)
    reports = make_tables(TOY, SMOKE, tmp_path)
    assert [(report.dataset, report.epochs, report.lines[0].mean) for report in reports] == [
        (SMALL, 2, 40.0), (SMALL, 9, 50.0), ("uoft-cs/cifar10", 9, 30.0),
    ]  # fmt: skip
    (one,) = make_tables(TOY, SMOKE, tmp_path, epochs=9, dataset=SMALL)
    assert one.lines[0].mean == 50.0
    (other,) = make_tables(TOY, SCALES["cpu"], tmp_path)
    assert [line.state for line in other.lines][:3] == ["not run"] * 3
    cifar = make_tables(TOY, SMOKE, tmp_path, dataset="uoft-cs/cifar10")[0]
    assert len(cifar.claims) == len(TOY.orderings)


def test_a_table_shows_the_scores_that_its_experiment_names(tmp_path: Path) -> None:
    """Orderings compare the first score, with their slack; a run may lack others."""
    scored = replace(
        TOY,
        scores=(TableScore("Matthews", "eval_matthews"), TableScore("error", "error", 1.0, 3)),
        orderings=(
            Ordering(("PSL", "n = 2"), ("SFL", "n = 2"), slack=5.0),
            Ordering(("PSL", "n = 2"), ("SFL", "n = 2"), slack=2.0),
        ),
    )
    finish(tmp_path, cell_of("PSL"), 0.9, eval_matthews=0.30, error=0.25)
    finish(tmp_path, cell_of("PSL", seed=1), 0.9, eval_matthews=0.32, error=0.35)
    finish(tmp_path, cell_of("SFL"), 0.9, eval_matthews=0.2750)
    (table,) = make_tables(scored, SMOKE, tmp_path)
    assert tables.headings(table)[2:5] == ["Matthews", "error", "seeds"]
    assert tables.rows(table)[0][2:5] == ["31.00 ± 1.41", "0.300 ± 0.071", "2 seeds"]
    assert tables.rows(table)[1][2:5] == ["27.50", "-", "1 seed"]
    assert tables.rows(table)[2][2:5] == ["-", "-", "not run"]
    verdicts: dict[str, tuple[str, Any]] = {
        str(claim.ordering): (claim.verdict, claim.margin) for claim in table.claims
    }
    assert verdicts == {
        "PSL < SFL + 5 (n = 2)": ("agrees", pytest.approx(2.5)),
        "PSL < SFL + 2 (n = 2)": ("disagrees", pytest.approx(-0.5)),
    }
    (plain,) = json.loads(json.dumps(tables.to_json([table])))
    assert plain["lines"][0]["further_scores"] == [[0.25, 0.35]]


def test_text_has_our_number_beside_the_papers(table: Table) -> None:
    assert tables.headings(table)[4:6] == ["paper, CIFAR-10", "paper, Fashion-MNIST"]
    assert tables.rows(table)[0] == [
        "PSL", "n = 2", "41.50 ± 2.12", "2 seeds", "50.00", "60.00", "4.00 MB", "2.00 MB",
    ]  # fmt: skip
    assert tables.rows(table)[3][2:6] == ["-", "not offered", "1.00", "-"]
    assert tables.cost_rows(table) == [
        ["PSL, SFL", "n = 2", "1.00 MB", "2.00 MB", "3.00 MB", "4.00", "5.00"]
    ]
    assert tables.tally(table.claims) == "1 agree, 1 disagree, 1 not run, 1 not offered"


def test_markdown_is_tables_of_equal_width(table: Table) -> None:
    text = tables.to_markdown([table])
    assert "### toy: a toy (nowhere); scale smoke, fashion-mnist-small, 2 epochs" in text
    assert "| PSL | n = 2 | 41.50 ± 2.12 | 2 seeds | 50.00 | 60.00 | 4.00 MB | 2.00 MB |" in text
    assert "| PSL < SFL (n = 2) | agrees | +1.00 |" in text
    for block in text.split("\n\n"):
        widths = {line.count("|") for line in block.splitlines() if line.startswith("|")}
        assert len(widths) <= 1


def test_json_has_every_seed(table: Table) -> None:
    (report,) = json.loads(json.dumps(tables.to_json([table]), allow_nan=False))
    psl = report["lines"][0]
    assert (psl["seeds"], psl["values"], psl["paper"]) == (
        [0, 1], [40.0, 43.0], {CIFAR: 50.0, FASHION: 60.0},
    )  # fmt: skip
    assert [each["verdict"] for each in report["orderings"][:2]] == ["agrees", "disagrees"]
    assert psl["client_costs"]["forward_macs"] == 4_000_000


def test_runs_on_labels_of_the_other_kind_are_another_tables(tmp_path: Path) -> None:
    """A cell does not say how many labels an example has: both tables have these cells."""
    several = replace(TOY, name="several", track="multi-label")
    plain = replace(TOY, track="shuffling")
    for source in (SMALL, "uoft-cs/cifar10", COMPOSED, "flwrlabs/celeba", "/own/pictures"):
        finish(tmp_path, next(cell for _, cell in plain.cells(SMOKE, source=source)), 0.5)
    shown = {
        each.track: [table.dataset for table in make_tables(each, SMOKE, tmp_path)]
        for each in (plain, several)
    }
    assert shown == {
        "shuffling": [SMALL, "pictures", "uoft-cs/cifar10"],
        "multi-label": [COMPOSED, "flwrlabs/celeba", "pictures"],
    }
    (named,) = make_tables(several, SMOKE, tmp_path, dataset=SMALL)
    assert named.lines[0].values == (50.0,)
