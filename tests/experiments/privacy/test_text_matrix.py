"""The matrix of texts: its rows, its texts, a run of some cells, and its output."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from flwr_splitmix.attacks.catalogue import text_attacks
from flwr_splitmix.cli import app
from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.privacy.cells import MatrixCell, Place, choose
from flwr_splitmix.experiments.privacy.grid import TaskProgress, run_tasks
from flwr_splitmix.experiments.privacy.kinds import MatrixFact
from flwr_splitmix.experiments.privacy.matrices import TEXTS
from flwr_splitmix.experiments.privacy.page import matrix_block
from flwr_splitmix.experiments.privacy.results import Result, results
from flwr_splitmix.experiments.privacy.tables import to_markdown
from flwr_splitmix.experiments.privacy.tasks import tasks_of, with_gates
from flwr_splitmix.experiments.privacy.texts.columns import ATTACKS
from flwr_splitmix.experiments.privacy.texts.data import load_matrix_texts
from flwr_splitmix.experiments.privacy.texts.rows import (
    LADDERS,
    TEXT_ROWS,
    EqualRow,
    ExtendedRow,
)
from flwr_splitmix.experiments.privacy.texts.sizes import SUMS, TEXT_SIZES
from flwr_splitmix.experiments.privacy.texts.victims import (
    TextVictim,
    base_parts,
    load_text_victim,
)
from flwr_splitmix.experiments.privacy.texts.work import known_parts
from flwr_splitmix.hiding.making import hiding_options
from flwr_splitmix.strategies import USHAPE_STRATEGIES

SMOKE = TEXT_SIZES["smoke"]


def place_in(folder: Path) -> Place:
    return Place(folder, SMOKE, SUMS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a place of all tests of this file: none trains a row that another has trained."""
    return place_in(tmp_path_factory.mktemp("texts"))


def test_rows_are_methods_with_options_of_theirs_and_columns_are_attacks() -> None:
    # A server that averages heads and tails has them, and needs no attack.
    others = {name for name, kind in USHAPE_STRATEGIES.items() if not kind.averages}
    assert {row.method for row in TEXT_ROWS.values()} == others
    for row in TEXT_ROWS.values():
        allowed = hiding_options(USHAPE_STRATEGIES[row.method].hiding)
        assert {name for name, _ in row.options} <= allowed, row.name
        if isinstance(row, EqualRow):
            assert row.knob in allowed - {name for name, _ in row.options}
            assert all(row.knob in LADDERS[size] for size in TEXT_SIZES)
        if isinstance(row, ExtendedRow):
            assert "+" in row.name
    assert set(ATTACKS) == set(text_attacks())
    assert set(TEXTS.main) <= set(TEXT_ROWS)


def test_a_filter_names_rows_and_attacks_of_texts() -> None:
    cells = choose("MixGuard-k3:key-search, USplitSL:sip", [0], TEXTS)
    assert [str(cell) for cell in cells] == [
        "MixGuard-k3: key-search, server, seed 0",
        "USplitSL: sip, server, seed 0",
    ]
    with pytest.raises(ExperimentError, match="no row 'Vanilla'; it has USplitSL"):
        choose("Vanilla", [0], TEXTS)
    with pytest.raises(ExperimentError, match="no attack 'decoder'; it has vocabulary"):
        choose(":decoder", [0], TEXTS)
    with pytest.raises(ExperimentError, match=r"did you mean 'MixGuard-k3', .*\? It has USplitSL"):
        choose("MixGuard:key-search", [0], TEXTS)
    with pytest.raises(ExperimentError, match=r"did you mean 'key-search'\? It has vocabulary"):
        choose("MixGuard-k3:keysearch", [0], TEXTS)
    with pytest.raises(ExperimentError, match="as in USplitSL:vocabulary"):
        choose(",", [0], TEXTS)


def test_an_attack_needs_its_row_trained_and_its_gate(tmp_path: Path) -> None:
    cells = with_gates(choose("SnDSL:sip", [1], TEXTS), TEXTS)
    assert [str(task) for task in tasks_of(cells, place_in(tmp_path))] == [
        "USplitSL: training, seed 1",
        "USplitSL: sip, server, seed 1",
        "SnDSL: training, seed 1",
        "SnDSL: sip, server, seed 1",
    ]


def test_an_attacker_has_base_head_and_tail_and_the_trained_trunk() -> None:
    texts = load_matrix_texts(SUMS, SMOKE, 0)
    base, trained = (base_parts(SMOKE, texts, "generation") for _ in range(2))
    with torch.no_grad():
        for moved in trained.all_here():
            for weights in moved.parameters():
                weights.add_(1)
    attacker_parts = known_parts(TEXT_ROWS["USplitSL"], SMOKE, TextVictim(trained, None, texts))
    expected_parts = (base.head, trained.trunk, base.tail)
    for part, expected in zip(attacker_parts.all_here(), expected_parts, strict=True):
        assert expected is not None
        for weights, same in zip(part.parameters(), expected.parameters(), strict=True):
            assert torch.equal(weights, same)
            assert not weights.requires_grad


def of(measured: list[Result], method: str, attack: str, metric: str = "token accuracy") -> Result:
    return next(r for r in measured if (r.method, r.attack, r.metric) == (method, attack, metric))


def test_cells_run_through_and_only_once(place: Place) -> None:
    """All parts run at scale smoke: victims, attacks, scores; a second run does nothing."""
    cells = choose(
        "USplitSL:vocabulary, USplitSL:tag, USplitSL:key-search, MixGuard-k3-secret20:sip, "
        "MixGuard-k3:key-search, MixGuard-k3:gradient-ratio, MixGuard-k3:adaptive, "
        "NaiveMixSL:vocabulary, NaiveMixSL:solve-batch, DPForwardSL:adaptive, SnDSL:sip, "
        "NoPeekSL:vocabulary",
        [0],
        TEXTS,
    )
    reports: list[TaskProgress] = []
    failures = run_tasks(tasks_of(cells, place), place, apart=False, on_progress=reports.append)
    assert not failures
    assert not tasks_of(cells, place)
    measured = results(cells, place)
    assert all(r.stopped_after is None for r in measured)
    plain = of(measured, "USplitSL", "vocabulary")
    assert plain.passed_gate
    assert plain.floor is not None
    assert (plain.value or 0) > 0.9
    assert of(measured, "USplitSL", "key-search", "not applicable").reason.startswith(
        "the view of the adversary 'server' on USplitSL has one message of a text only"
    )
    # Both hide nothing but the fine-tuned head's small difference from the base head.
    assert (of(measured, "NaiveMixSL", "vocabulary").value or 1) < 0.8
    assert (of(measured, "NaiveMixSL", "solve-batch").value or 0) > 0.9
    assert (of(measured, "MixGuard-k3", "gradient-ratio").value or 0) > 0.8
    bytes_of = {
        name: of(measured, name, "none", "uplink bytes of an epoch").value or 0
        for name in ("USplitSL", "MixGuard-k3", "MixGuard-k3-secret20")
    }
    assert 2.5 * bytes_of["USplitSL"] < bytes_of["MixGuard-k3"] < bytes_of["MixGuard-k3-secret20"]
    assert 0 <= (of(measured, "SnDSL", "none", "accuracy").value or -1) <= 1
    assert (of(measured, "SnDSL", "none", "processor seconds of training").value or 0) > 0
    assert not [r for r in measured if r.metric == "Matthews correlation"]  # no classes
    folder = next(c for c in cells if c.row.name == "MixGuard-k3-secret20").folder(place)
    table = pq.read_table(folder / "samples.parquet")
    assert table["trained"].to_pylist() == [True] * 3 + [False] * 3
    assert not {"ids", "words"} & set(table.column_names)

    text = to_markdown(measured, TEXTS)
    heads = text.splitlines()[0]
    assert heads.startswith(
        "| method | accuracy | uplink/epoch | training | decode error | calibrated | leak | "
    )
    assert text.rstrip().endswith(TEXTS.legend)
    names = "USplitSL:vocabulary, NoPeekSL:vocabulary"
    shown = results(choose(names, [0], TEXTS), place)
    block = matrix_block("matrix", f"texts:smoke@{SUMS} {names}", place.home)
    assert block == to_markdown(shown, TEXTS, TEXTS.guide)


def test_extensions_send_what_they_say_and_their_attacks_know_it(place: Place) -> None:
    cells = choose(
        "USplitSL+tail:vocabulary, USplitSL+tail:tag, MixGuard-k3+tail:gradient-ratio, "
        "MixGuard-k3:gradient-ratio, MixGuard-k3+one-message:gradient-ratio, "
        "MixGuard-k3+deep:sip, DPForwardSL+tail:vocabulary",
        [0],
        TEXTS,
    )
    failures = run_tasks(tasks_of(cells, place), place, apart=False, on_progress=lambda _: None)
    assert not failures
    measured = results(cells, place)
    for name, attack in (("USplitSL+tail", "tag"), ("MixGuard-k3+tail", "gradient-ratio")):
        reason = of(measured, name, attack, "not applicable").reason
        assert reason.endswith("has no gradients, without which there is no such attack")
    # Heads were not trained, so the base head's hidden states of words are exact.
    assert of(measured, "USplitSL+tail", "vocabulary").value == 1.0
    # The attack reads a single message in place of the decoded target.
    decoded = of(measured, "MixGuard-k3", "gradient-ratio").value or 0
    assert (of(measured, "MixGuard-k3+one-message", "gradient-ratio").value or 0) < decoded / 2
    deep = load_text_victim(
        TEXT_ROWS["MixGuard-k3+deep"],
        0,
        place.victim(TEXT_ROWS["MixGuard-k3+deep"], 0),
        SUMS,
        SMOKE,
    )
    assert (deep.parts.cut.head, deep.parts.layers) == (3, 5)
    # One epoch, one release of each text.
    epsilon = of(measured, "DPForwardSL+tail", "none", "epsilon of all messages of a text").value
    assert epsilon == pytest.approx(8.0)
    assert (of(measured, "DPForwardSL+tail", "vocabulary").value or 0) < 0.3


def test_ablations_of_mixguard_train_and_say_how_well_they_decode(place: Place) -> None:
    rows = [
        "MixGuard-k3-convex",
        "MixGuard-k3-uncalibrated",
        "MixGuard-k3-refined",
        "MixGuard-k3-skewed+residual",
        "MixGuard-k10-m5",
    ]
    cells = choose(", ".join(f"{row}:vocabulary" for row in rows), [0], TEXTS)
    tasks = [task for task in tasks_of(cells, place) if task.kind == "victim"]
    assert not run_tasks(tasks, place, apart=False, on_progress=lambda _: None)
    facts_by_row = {
        row: json.loads((place.victim(TEXT_ROWS[row], 0) / "done.json").read_text()) for row in rows
    }
    # Without calibration, no public text is decoded, and no error is reported.
    assert "decode_error" not in facts_by_row.pop("MixGuard-k3-uncalibrated")
    assert all(facts["decode_error"] > 0 for facts in facts_by_row.values())
    assert all(0 < facts["leak"] <= 1 + 1e-6 for facts in facts_by_row.values())


def test_a_defence_is_brought_to_mixguards_utility(place: Place, tmp_path: Path) -> None:
    row = TEXT_ROWS["NoPeekSL-equal"]
    cells = choose("NoPeekSL-equal:vocabulary", [0], TEXTS)
    assert [str(task) for task in tasks_of(cells, place_in(tmp_path))] == [
        "MixGuard-k3: training, seed 0",
        "NoPeekSL-equal: noise at which utility is MixGuard-k3's",
        "NoPeekSL-equal: training, seed 0",
        "NoPeekSL-equal: vocabulary, server, seed 0",
    ]
    assert not run_tasks(tasks_of(cells, place), place, apart=False, on_progress=lambda _: None)
    noise_search = json.loads(place.noise(row).read_text())
    assert noise_search["dcor_weight"] == 1.0
    assert list(noise_search["tried"]) == ["1.0"]
    reference = json.loads((place.victim(TEXT_ROWS["MixGuard-k3"], 0) / "done.json").read_text())
    assert noise_search["target"] == reference["accuracy"]
    measured = results(cells, place)
    assert of(measured, "NoPeekSL-equal", "none", "noise option at equal utility").value == 1.0
    assert "| option |" in to_markdown(measured, TEXTS)


def test_a_victim_is_kept_as_it_was_trained(place: Place) -> None:
    row = TEXT_ROWS["MixGuard-k3"]
    cell = MatrixCell(row, TEXTS.columns_of("vocabulary")[0], 0)
    tasks = [task for task in tasks_of([cell], place) if task.kind == "victim"]
    assert not run_tasks(tasks, place, apart=False, on_progress=lambda _: None)
    victim = load_text_victim(row, 0, place.victim(row, 0), SUMS, SMOKE)
    base = base_parts(SMOKE, victim.texts, "generation")
    head, trunk, tail = victim.parts.all_here()
    ids = victim.texts.victims[0][0][None]
    with torch.no_grad():
        learned = tail(trunk(head(ids)))
        first = base.all_here()[2](base.all_here()[1](base.all_here()[0](ids)))
    losses = [
        float(torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:]))
        for logits in (learned, first)
    ]
    assert losses[0] < losses[1]
    assert victim.state is not None
    assert victim.state[1]["calibrated"] is True
    assert not any(p.requires_grad for part in victim.parts.all_here() for p in part.parameters())


def test_a_matrix_of_which_nothing_was_run_says_where_and_what_to_do(tmp_path: Path) -> None:
    command = [
        "attack", "matrix", "texts", "--cells", "USplitSL:sip, NaiveMixSL:sip", "--show",
        "--run-dir", str(tmp_path),
    ]  # fmt: skip
    for table_format in ("table", "markdown"):
        invocation = CliRunner().invoke(app, [*command, "--format", table_format])
        assert (invocation.exit_code, invocation.stdout) == (0, "")
        assert f"nothing of 2 cells has been run in {tmp_path / 'attacks'}" in invocation.stderr
        assert "without --show the same command runs them" in invocation.stderr
    invocation = CliRunner().invoke(app, [*command, "--format", "json"])
    assert (json.loads(invocation.stdout), invocation.stderr) == ([], "")


def test_an_attack_that_its_time_limit_ended_is_marked(place: Place) -> None:
    hurried = replace(place, size=replace(SMOKE, seconds=0.0))
    cells = choose("USplitSL:tag", [1], TEXTS)
    assert not run_tasks(tasks_of(cells, hurried), hurried, apart=False, on_progress=lambda _: None)
    measured = [r for r in results(cells, hurried) if r.attack == "tag"]
    assert measured
    assert all((r.stopped_after or -1) >= 0 for r in measured)
    assert "(stopped)" in to_markdown(measured, TEXTS).splitlines()[2]


def test_the_command_runs_cells_in_processes_and_prints_them(tmp_path: Path) -> None:
    command = ["attack", "matrix", "texts", "--cells", "USplitSL:vocabulary"]
    invocation = CliRunner().invoke(app, [*command, "--format", "json", "--run-dir", str(tmp_path)])
    assert invocation.exit_code == 0, invocation.output
    rows = json.loads(invocation.stdout)
    assert {tuple(one) for one in rows} == {
        ("method", "attack", "adversary", "metric", "value", "low", "high", "floor", "passed_gate",
         "stopped_after")
    }  # fmt: skip
    (words,) = [one for one in rows if one["metric"] == "token accuracy"]
    assert words["passed_gate"] is True
    assert (words["method"], words["attack"]) == ("USplitSL", "vocabulary")
    shown = CliRunner().invoke(
        app, [*command, "--show", "--format", "markdown", "--run-dir", str(tmp_path)]
    )
    assert shown.stdout.splitlines()[2].startswith("| USplitSL | ")
    wrong = CliRunner().invoke(app, ["attack", "matrix", "texts", "--scale", "huge"])
    assert wrong.exit_code != 0
    assert "available: smoke, cpu, paper" in " ".join(wrong.output.split())


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("percent", 0.5, "50.0 %"),
        ("megabytes", 2.5e6, "2.5 MB"),
        ("seconds", 12.4, "12 s"),
        ("number", 0.1234, "0.123"),
    ],
)
def test_facts_are_written_in_their_units(unit: str, value: float, text: str) -> None:
    assert MatrixFact("key", "metric", "heading", unit).as_text(value) == text  # type: ignore[arg-type]
