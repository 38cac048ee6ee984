"""The named experiments: complete, copied correctly, and true to the papers' own claims."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields

import pytest

from flwr_splitmix.experiments import (
    EXPERIMENTS,
    SCALES,
    Entry,
    Experiment,
    ExperimentError,
    Ordering,
    Scale,
    experiment_named,
    scale_named,
)
from flwr_splitmix.experiments.baselines import BASELINES
from flwr_splitmix.experiments.experiment import paper_dataset
from flwr_splitmix.experiments.texts.running import OPTIONS
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import STRATEGIES

MODELS = ("ViT-Tiny", "PiT-Tiny", "VGG-16")
N = tuple(f"n = {n}" for n in (2, 4, 6, 8, 10))

# As printed, line by line: (experiment, data set, columns) -> row -> numbers.
PRINTED: list[tuple[str, str, tuple[str, ...], dict[str, str]]] = [
    (
        "cutmixsl-table1",
        "CIFAR-10",
        MODELS,
        {
            "Standalone": "49.14 / 47.77 / 54.97",
            "Parallel SL": "57.05 / 52.28 / 62.62",
            "Cutout": "65.03 / 60.87 / 67.06",
            "Mixup": "71.02 / 65.92 / 74.43",
            "Patch CutMix": "75.55 / 73.19 / 72.23",
            "Shuffled CutMix": "72.78 / 57.59 / 33.50",
        },
    ),
    (
        "cutmixsl-table2",
        "CIFAR-10",
        N,
        {
            "Parallel SL": "52.91 55.55 56.81 56.55 57.05",
            "SplitFed": "53.96 58.39 63.07 65.59 66.70",
            "CutMixSL (k times, uniform)": "58.06 65.11 65.76 68.97 67.66",
            "CutMixSL (uniform)": "61.66 66.80 67.69 69.86 70.93",
            "CutMixSL (alpha = 6)": "62.62 69.47 71.80 73.67 75.55",
            "CutMixSFL (uniform)": "65.82 72.31 74.31 78.88 80.14",
            "CutMixSFL (alpha = 6)": "67.58 73.52 76.85 79.48 80.97",
        },
    ),
    (
        "cutmixsl-fig6b",
        "CIFAR-10",
        ("2-way", "3-way", "4-way", "5-way"),
        {"Dir(alpha = 6)": "75.55 70.86 66.67 67.04", "uniform": "70.93 68.59 66.96 67.01"},
    ),
    (
        "dp-cutmixsl-table4",
        "Fashion-MNIST",
        MODELS,
        {
            "Standalone": "77.65 / 78.21 / 80.12",
            "PSL": "85.68 / 82.35 / 84.39",
            "SFL": "89.17 / 84.27 / 87.34",
            "PSL w. Mixup": "88.21 / 87.62 / 88.53",
            "PSL w. Random Cutout": "88.46 / 86.48 / 88.17",
            "PSL w. Vanilla CutMix": "87.86 / 86.31 / 89.01",
            "CutMixSL (proposed)": "89.75 / 89.25 / 89.45",
        },
    ),
    (
        "dp-cutmixsl-table4",
        "CIFAR-10",
        MODELS,
        {
            "Standalone": "48.84 / 47.77 / 54.97",
            "PSL": "57.21 / 52.28 / 62.62",
            "SFL": "67.88 / 55.63 / 63.98",
            "PSL w. Mixup": "69.23 / 64.89 / 68.20",
            "PSL w. Random Cutout": "53.86 / 50.28 / 56.65",
            "PSL w. Vanilla CutMix": "71.78 / 58.21 / 33.50",
            "CutMixSL (proposed)": "73.77 / 71.26 / 67.53",
        },
    ),
    (
        "dp-cutmixsl-table6",
        "CIFAR-10",
        MODELS,
        {
            "PSL w. Mixup": "74.36 37.21 66.08",
            "PSL w. Random Cutout": "22.03 45.19 66.32",
            "PSL w. Vanilla CutMix": "73.02 33.54 47.69",
            "CutMixSL (proposed)": "75.06 53.93 67.43",
        },
    ),
    (
        "dp-cutmixsl-table6",
        "Fashion-MNIST",
        MODELS,
        {
            "PSL w. Mixup": "89.86 87.62 89.70",
            "PSL w. Random Cutout": "88.65 88.51 89.62",
            "PSL w. Vanilla CutMix": "88.72 88.37 90.02",
            "CutMixSL (proposed)": "89.91 89.53 90.32",
        },
    ),
    (
        "patch-shuffling-table1",
        "CelebA",
        ("T2T-ViT-24",),
        {
            "SL": "91.05",
            "Adv": "90.36",
            "Blur": "89.58",
            "DP": "80.67",
            "GN": "87.35",
            "BS (kappa = 0.4)": "89.18",
            "PS+": "88.21",
        },
    ),
    (
        "patch-shuffling-table1-mcc",
        "CelebA",
        ("T2T-ViT-24",),
        {
            "SL": "72.7",
            "Adv": "70.5",
            "Blur": "67.8",
            "DP": "31.2",
            "GN": "60.1",
            "BS (kappa = 0.4)": "66.0",
            "PS+": "63.1",
        },
    ),
    (
        "patch-shuffling-table2",
        "CIFAR-10",
        ("T2T-ViT-24",),
        {"SL": "98.36", "PS": "96.99", "BS (kappa = 0.75)": "96.16"},
    ),
    (
        "patch-shuffling-table6",
        "one image of 224 pixels",
        ("T2T-ViT-24",),
        {"SL": "3.10", "Adv": "81.63", "PS": "3.10", "BS (kappa = 0.4)": "3.10", "PS+": "1.18"},
    ),
    (
        "patch-shuffling-table7",
        "CelebA",
        ("T2T-ViT-24",),
        {
            "BS (kappa = 0.5)": "90.29",
            "BS (kappa = 0.4)": "89.18",
            "BS (kappa = 0.25)": "88.54",
            "BS (kappa = 0.15)": "88.76",
        },
    ),
]

# The workshop paper's Table 1 has DP-CutMixSL's Table 4 under other names.
WORKSHOP = {
    "Standalone": "Standalone",
    "PSL": "SL",
    "SFL": "SplitFed",
    "PSL w. Mixup": "SL w. Mixup",
    "PSL w. Random Cutout": "Standalone w. Cutout",
    "PSL w. Vanilla CutMix": "SL w. Vanilla CutMix",
    "CutMixSL (proposed)": "CutMixSL (proposed)",
}
PRINTED += [
    ("dp-cutmix-workshop-table1", data, at, {WORKSHOP[row]: line for row, line in lines.items()})
    for name, data, at, lines in PRINTED
    if name == "dp-cutmixsl-table4"
]

EVERY = [pytest.param(experiment, id=name) for name, experiment in EXPERIMENTS.items()]


@pytest.mark.parametrize(("name", "dataset", "columns", "lines"), PRINTED)
def test_the_papers_numbers_are_those_that_they_print(
    name: str, dataset: str, columns: tuple[str, ...], lines: dict[str, str]
) -> None:
    typed_in = {entry.place: entry.paper.get(dataset) for entry in EXPERIMENTS[name].entries}
    for row, numbers in lines.items():
        expected = [float(number) for number in numbers.replace("/", " ").split()]
        assert [typed_in[row, column] for column in columns] == expected, row


def test_every_table_and_figure_that_was_asked_for_is_there() -> None:
    expected = {
        "cutmixsl-fig2", "dp-cutmix-workshop-fig3a", "dp-cutmix-workshop-fig3b",
        "cutmixsl-table1", "cutmixsl-table2", "cutmixsl-fig6a", "cutmixsl-fig6b", "cutmixsl-fig8",
        "dp-cutmixsl-table4", "dp-cutmixsl-table6", "dp-cutmixsl-table7",
        "dp-cutmixsl-fig5a", "dp-cutmixsl-fig5c", "dp-cutmixsl-fig11a", "dp-cutmixsl-table5",
        "cutmixsl-fig9", "dp-cutmix-workshop-table1", "patch-shuffling-table1",
        "patch-shuffling-table2", "baselines", "mixguard-cola", "mixguard-curve",
        "mixguard-cola-3000", "mixguard-curve-stories15m", "mixguard-table4", "mixguard-table6",
        "mixguard-table7", "mixguard-table8", "mixguard-fig3b", "mixguard-fig3c", "mixguard-fig4",
        "mixguard-fig5",
    }  # fmt: skip
    assert expected <= EXPERIMENTS.keys()


@pytest.mark.parametrize("experiment", EVERY)
def test_places_are_unique_and_orderings_speak_of_them(experiment: Experiment) -> None:
    places = [entry.place for entry in experiment.entries]
    assert len(set(places)) == len(places)
    for ordering in experiment.orderings:
        assert {ordering.low, ordering.high} <= set(places), str(ordering)
    stated = [(o.low, o.high, o.measure) for o in experiment.orderings]
    assert len(set(stated)) == len(stated)


def printed(experiment: Experiment, ordering: Ordering) -> list[tuple[str, float, float]]:
    by_place: dict[tuple[str, str], Entry] = {e.place: e for e in experiment.entries}
    low, high = by_place[ordering.low].paper, by_place[ordering.high].paper
    datasets = [d for d in low if d in high and d in (ordering.datasets or low)]
    return [(dataset, low[dataset], high[dataset]) for dataset in datasets]


def test_patch_shufflings_noise_is_that_of_its_text() -> None:
    """Source: Patch Shuffling, section V-A: N(0, 4), and a standard deviation of 1.0."""
    rows = {
        entry.row: dict(entry.variant.options)
        for entry in EXPERIMENTS["patch-shuffling-table1"].entries
        if entry.variant is not None
    }
    assert (rows["GN"]["sigma_s"], rows["GN"]["clip"]) == (2.0, "none")
    assert (rows["DP"]["sigma_s"], rows["DP"]["clip"]) == (1.0, "patch")


def test_the_workshops_cutmixsl_is_best_but_once() -> None:
    """Section 4: "except for one case, where SL w. Mixup is used with CIFAR-10 and VGG-16"."""
    claims = EXPERIMENTS["dp-cutmix-workshop-table1"].orderings
    best = "CutMixSL (proposed)"
    for dataset, exceptions in (
        ("Fashion-MNIST", set()),
        ("CIFAR-10", {("SL w. Mixup", "VGG-16")}),
    ):
        dataset_claims = [claim for claim in claims if dataset in (claim.datasets or (dataset,))]
        others = {(row, model) for row in WORKSHOP.values() for model in MODELS if row != best}
        assert {
            claim.low for claim in dataset_claims if claim.high[0] == best
        } == others - exceptions


@pytest.mark.parametrize("experiment", EVERY)
def test_what_a_paper_claims_its_own_numbers_bear_out(experiment: Experiment) -> None:
    for ordering in experiment.orderings:
        if ordering.measure == "accuracy":
            for dataset, low, high in printed(experiment, ordering):
                assert low < high + ordering.slack, f"{ordering} on {dataset}"


def test_the_orderings_of_the_issue_are_among_the_claims() -> None:
    claims = {str(ordering) for ordering in EXPERIMENTS["cutmixsl-table2"].orderings}
    assert {
        "Parallel SL < CutMixSL (alpha = 6) (n = 10)",
        "Parallel SL < SplitFed (n = 10)",
        "SplitFed < CutMixSFL (alpha = 6) (n = 10)",
        "CutMixSL (alpha = 6) < CutMixSFL (alpha = 6) (n = 10)",
    } <= claims


@pytest.mark.parametrize("scale", SCALES.values(), ids=list(SCALES))
@pytest.mark.parametrize("experiment", EVERY)
def test_every_cell_has_a_method_that_takes_its_options(
    experiment: Experiment, scale: Scale
) -> None:
    cells = [cell for _, cell in experiment.cells(scale, seeds=(0, 1))]
    ids = {cell.id: cell for cell in cells}
    assert len(ids) == len(set(cells))
    for cell in cells:
        json.dumps(cell.config, allow_nan=False)
        if cell.recipe.texts is not None:
            assert {name for name, _ in cell.options} <= OPTIONS[cell.method], cell
            continue
        kind = STRATEGIES.get(cell.method) or BASELINES[cell.method]
        parameters = {*inspect.signature(kind.__init__).parameters}
        if "noise" in parameters or "sigma_s" in dict(cell.options):
            parameters |= {value.name for value in fields(GaussianNoise)} | {"delta"}
        assert {name for name, _ in cell.options} <= parameters, cell


def test_one_run_serves_every_experiment_that_needs_it() -> None:
    scale = SCALES["cpu"]

    def ids(name: str) -> set[str]:
        return {cell.id for _, cell in EXPERIMENTS[name].cells(scale)}

    shared = ids("cutmixsl-table1") & ids("cutmixsl-table2") & ids("dp-cutmixsl-table4")
    methods = {name.split("-")[0] for name in shared}
    assert methods == {"psl", "cutmixsl"}
    assert ids("cutmixsl-fig7") <= (
        ids("cutmixsl-fig2") | ids("cutmixsl-fig6b") | ids("cutmixsl-table2")
    )


def test_uniform_is_one_kth_and_the_other_reading_has_a_name() -> None:
    """DP-CutMixSL, Table 2: "uniform" is lam = 1/k, the limit of infinite alpha."""

    def alphas(name: str, row: str) -> set[object]:
        entries = EXPERIMENTS[name].entries
        return {dict(e.variant.options)["alpha"] for e in entries if e.row == row and e.variant}

    assert alphas("cutmixsl-table2", "CutMixSL (uniform)") == {None}
    assert alphas("cutmixsl-table2-dirichlet1", "CutMixSL (uniform)") == {1.0}
    assert alphas("cutmixsl-fig6b", "uniform") == {None}
    assert alphas("cutmixsl-fig6b", "Dir(alpha = 1)") == {1.0}


def test_what_was_run_with_joint_updates_is_still_found() -> None:
    """Table 2's argument, n server updates against n/k, needs sequential ones."""
    for table in ("cutmixsl-table1", "cutmixsl-table2"):
        joint = {cell for _, cell in EXPERIMENTS[f"{table}-joint"].cells(SCALES["cpu"])}
        assert {cell.recipe.server_update for cell in joint} == {"sum"}
        updates = {cell.recipe.server_update for _, cell in EXPERIMENTS[table].cells(SCALES["cpu"])}
        assert "sequential" in updates


def test_the_workshops_epsilons_order_as_its_theorem_says() -> None:
    at = {e.place: e.epsilon for e in EXPERIMENTS["dp-cutmix-workshop-fig3a"].entries}
    for noise in ("1/255", "16/255"):
        mix, cut, plain = (at[row, noise] for row in ("DP-MixSL", "DP-CutMixSL", "DP-SL"))
        assert mix is not None
        assert cut is not None
        assert plain is not None
        assert mix < cut < plain
    # order / 2 (Delta^2 D_s + D_y) / sigma^2 of one release
    assert at["DP-SL", "1/255"] == pytest.approx((0.04 * 20 + 10) * 255)


@pytest.mark.parametrize(
    ("name", "paper"),
    [
        ("fashion_mnist", "Fashion-MNIST"),
        ("fashion-mnist-small", "Fashion-MNIST"),
        ("zalando-datasets/fashion_mnist", "Fashion-MNIST"),
        ("uoft-cs/cifar10", "CIFAR-10"),
        ("cifar-10", "CIFAR-10"),
        ("uoft-cs/cifar100", "uoft-cs/cifar100"),
    ],
)
def test_data_sets_are_recognised(name: str, paper: str) -> None:
    assert paper_dataset(name) == paper


def test_a_misspelt_experiment_names_the_close_ones() -> None:
    with pytest.raises(ExperimentError, match="cutmixsl-table1"):
        experiment_named("cutmixsl-tabel1")
    with pytest.raises(ExperimentError, match="available: smoke, cpu, paper"):
        scale_named("large")
