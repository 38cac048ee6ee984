"""The papers' privacy tables: complete, copied correctly, and made of cells that can be run."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.experiments import EXPERIMENTS
from flwr_splitmix.experiments.pages.attacks import privacy_results
from flwr_splitmix.experiments.privacy.cells import MatrixCell, Place
from flwr_splitmix.experiments.privacy.named import PRIVACY_EXPERIMENTS
from flwr_splitmix.experiments.privacy.page import matrix_block
from flwr_splitmix.experiments.privacy.sizes import SIZES
from flwr_splitmix.experiments.privacy.tables_of_papers import (
    PrivacyExperiment,
    make_table,
    rows,
    to_json,
    to_markdown,
)
from flwr_splitmix.files.writing import write_json
from tests.experiments.privacy.test_matrix import DECODER, keep

EVERY = [pytest.param(each, id=name) for name, each in PRIVACY_EXPERIMENTS.items()]

PRINTED = {
    "dp-cutmixsl-table3": (
        ".403 .425 .326 1.425 .116 .308 .138 .398 .665 .383 .379 1.923 .172 .396 .215 .292 "
        ".382 .426 .429 1.316 .180 .403 .219 .417 .425 .466 .441 1.561 .187 .312 .221 .435"
    ),
    "dp-cutmixsl-table8": (
        ".0091 .0056 .0672 .0595 .0402 .0351 .0920 .0829 .0458 .0434 .1233 .1250"
    ),
    "cutmixsl-table3": ".0091 .0056 .0920 .0829 .0402 .0351 .0458 .0434 .1233 .1250",
    "dp-cutmix-workshop-table2": ".0091 .0056 .0920 .0829 .0402 .0351 .0458 .0434",
    "patch-shuffling-table1-privacy": ".014 .014 .02 .384 .029 .109 .372",
    "patch-shuffling-table2-privacy": ".362 .696 .730",
    "patch-shuffling-table4-privacy": ".011 .038 .798 .826 .930 .914 .716 .871",
    "patch-shuffling-table5-privacy": ".014 .083 .373",
    "patch-shuffling-table7-privacy": ".071 .109 .128 .184",
    "patch-shuffling-table9-privacy": ".042 .052 .267 .435 .265",
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_papers_numbers_are_those_that_they_print(name: str) -> None:
    typed_in = [entry.paper for entry in PRIVACY_EXPERIMENTS[name].entries]
    assert typed_in == [float(number) for number in PRINTED[name].split()]


@pytest.mark.parametrize("experiment", EVERY)
def test_places_are_unique_and_orderings_speak_of_them(experiment: PrivacyExperiment) -> None:
    places = [entry.place for entry in experiment.entries]
    assert len(set(places)) == len(places)
    for ordering in experiment.orderings:
        assert {ordering.low, ordering.high} <= set(places), str(ordering)
    assert experiment.name not in EXPERIMENTS


def test_all_is_claimed_that_a_text_says_and_its_numbers_bear_out() -> None:
    """DP-CutMixSL, section 6: CutMixSL hides most; more images, a smaller alpha or k hide less."""
    counts: Counter[str] = Counter()
    for ordering in PRIVACY_EXPERIMENTS["dp-cutmixsl-table3"].orderings:
        (low, low_column), (high, high_column) = ordering.low, ordering.high
        pairs = zip(low_column.split(", "), high_column.split(", "), strict=True)
        varied = {f"{one} < {other}" for one, other in pairs if one != other}
        counts[varied.pop() if low == high else low] += 1
        assert not varied, "one thing is varied"
    assert counts == {
        "PSL": 8,
        "PSL w. Vanilla CutMix": 7,
        "PSL w. Mixup": 5,
        "100 % < 10 %": 15,
        "alpha = 2 < alpha = 6": 6,
        "k = 2 < k = 4": 11,
    }


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_what_a_paper_claims_its_own_numbers_bear_out(name: str) -> None:
    experiment = PRIVACY_EXPERIMENTS[name]
    printed = {entry.place: entry.paper for entry in experiment.entries}
    for ordering in experiment.orderings:
        low, high = printed[ordering.low], printed[ordering.high]
        assert low is not None
        assert high is not None
        assert low < high, str(ordering)


def test_batch_shuffling_is_attacked_at_each_kappa() -> None:
    entries = PRIVACY_EXPERIMENTS["patch-shuffling-table7-privacy"].entries
    kappas = [dict(entry.victim.options)["kappa"] for entry in entries if entry.victim]
    assert kappas == [0.5, 0.4, 0.25, 0.15]


def test_a_table_stands_beside_the_papers_numbers_and_judges_its_claims(tmp_path: Path) -> None:
    experiment = PRIVACY_EXPERIMENTS["dp-cutmix-workshop-table2"]
    place = Place(tmp_path, SIZES["smoke"], "fashion-mnist-small")
    order = ["Smashed data", "Mixup", "Cutout", "Patch CutMix"]  # the last two are swapped
    for entry, cell in experiment.cells([0, 2]):
        if entry.column == "10 %":
            value = 0.01 * (1 + order.index(entry.row)) + 0.001 * cell.seed
            write_json(cell.file(place), done(cell, value))
    table = make_table(experiment, place)
    lines = {line.entry.place: line for line in table.lines}
    assert lines["Mixup", "10 %"].mean == pytest.approx(0.021)
    assert lines["Mixup", "100 %"].mean is None
    verdicts = {(o.low, o.high): verdict for o, verdict, _ in table.claims}
    rising = pairwise(("Smashed data", "Mixup", "Patch CutMix", "Cutout"))
    assert [verdicts[(low, "10 %"), (high, "10 %")] for low, high in rising] == [
        "agrees", "agrees", "disagrees",
    ]  # fmt: skip
    assert verdicts[("Smashed data", "100 %"), ("Mixup", "100 %")] == "not run"
    assert ["Mixup", "10 %", "0.0210 ± 0.0014", "0.0700", "2", "0.0402"] in rows(table)
    assert "disagrees" in to_markdown(table)
    assert json.loads(json.dumps(to_json(table)))["lines"][0]["values"] == [0.01, 0.012]


def test_a_claim_compares_the_seeds_that_both_places_have(tmp_path: Path) -> None:
    """The mean of both seeds of Mixup is above Patch CutMix's; of seed 0 alone it is below."""
    experiment = PRIVACY_EXPERIMENTS["dp-cutmix-workshop-table2"]
    place = Place(tmp_path, SIZES["smoke"], "fashion-mnist-small")
    values = {("Mixup", 0): 0.010, ("Mixup", 1): 0.030, ("Patch CutMix", 0): 0.015}
    for entry, cell in experiment.cells([0, 1]):
        if entry.column == "10 %" and (entry.row, cell.seed) in values:
            write_json(cell.file(place), done(cell, values[entry.row, cell.seed]))
    claims = {str(claim): rest for claim, *rest in make_table(experiment, place).claims}
    assert claims["Mixup < Patch CutMix (10 %)"] == ["agrees", pytest.approx(0.005)]


def test_results_of_every_seed_are_shown(tmp_path: Path) -> None:
    """Seeds from 100 on, too, are not "not run"."""
    experiment = PRIVACY_EXPERIMENTS["cutmixsl-table3"]
    place = Place(tmp_path, SIZES["smoke"], "fashion-mnist-small")
    seeds = [2, 100, 2**63 - 1]
    for seed in reversed(seeds):
        _, cell = next(experiment.cells([seed]))
        write_json(cell.file(place), done(cell, 0.01))
    command = ["experiment", "show", experiment.name, "--scale", "smoke", "--format", "json"]
    shown = CliRunner().invoke(app, [*command, "--run-dir", str(tmp_path)])
    assert json.loads(shown.stdout)[0]["lines"][0]["values"] == [0.01] * 3
    (exported,) = privacy_results([experiment], [SIZES["smoke"]], tmp_path)
    assert exported.seeds == seeds
    result = keep(place, "PSL", DECODER, 100)
    block = matrix_block("matrix", f"smoke {result.row.name}", tmp_path)
    assert block is not None
    assert "| PSL |" in block


def test_a_result_from_before_a_metric_was_measured_is_read(tmp_path: Path) -> None:
    experiment = PRIVACY_EXPERIMENTS["dp-cutmixsl-fig9c"]
    place = Place(tmp_path, SIZES["smoke"], "fashion-mnist-small")
    entries = {entry.place: (entry, cell) for entry, cell in experiment.cells([0])}
    _, cell = entries["SFL", "norm"]
    assert entries["SFL", "norm, by batch"][1] == cell
    write_json(cell.file(place), done(cell, 0.6, "AUC"))
    lines = {line.entry.place: line for line in make_table(experiment, place).lines}
    assert (lines["SFL", "norm"].mean, lines["SFL", "norm, by batch"].mean) == (0.6, None)
    both = [*done(cell, 0.6, "AUC")["metrics"], *done(cell, 0.7, "AUC by batch")["metrics"]]
    write_json(cell.file(place), {"state": "done", "metrics": both})
    shown = {
        (row, at): (measured, paper)
        for row, at, measured, _, _, paper in rows(make_table(experiment, place))
    }
    assert shown["SFL", "norm"] == ("0.6000", "0.75")
    assert shown["SFL", "norm, by batch"] == ("0.7000", "0.75")
    assert shown["SFL", "cosine, by batch"] == ("not run", "0.68")


def done(cell: MatrixCell, value: float, metric: str = "MSE") -> dict[str, Any]:
    measured = {
        "metric": metric, "value": value, "low": value, "high": value, "floor": 0.07,
        "main": True, "lower_is_stronger": True,
    }  # fmt: skip
    return {"state": "done", "metrics": [measured]}
