"""The epsilon of a text method is shown wherever a run's is, with what it covers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.runs import Run
from flwr_splitmix.words import epsilon_text
from tests.apps.language_app import Fitted, fit

COVERS = {
    "DPForwardSL": "covers a client's messages about one record, in training and evaluation; not",
    "DPSGDSL": "covers the weights of a client's head and tail, about one training record, as long",
}


def run_of(fitted: Fitted) -> Run:
    run = fitted.strategy.recorder.run
    assert run is not None
    return run


def splitmix(home: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--run-dir", str(home)], env={"COLUMNS": "1000"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("strategy", sorted(COVERS))
def test_what_is_spent_is_shown_everywhere_with_what_it_covers(
    strategy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In log, tables, reports and cards, not in `metrics.parquet` alone."""
    with caplog.at_level(logging.INFO, "flwr.splitmix"):
        run = run_of(fit(tmp_path, strategy=strategy, task="generation"))
    epsilon = run.rows[-1]["train_epsilon"]
    shown = epsilon_text(epsilon)
    assert f"| epsilon {shown} |" in caplog.text
    summary = run.summary or {}
    assert summary["epsilon"] == epsilon
    assert f"covers {summary['epsilon_covers']}".startswith(COVERS[strategy])

    sentence = f"{shown} at delta 1e-05, the largest of the clients; it {COVERS[strategy]}"
    assert sentence in splitmix(tmp_path, "show")
    splitmix(tmp_path, "report", "latest", "-o", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"Epsilon {sentence.replace(chr(39), '&#x27;')}" in page
    assert ">epsilon</th>" in page
    assert "epsilon, the largest of the clients over rounds" in page
    compared = splitmix(tmp_path, "compare", "latest", "--format", "csv")
    assert f",{epsilon}," in compared
    assert f"Epsilon {COVERS[strategy]}" in compared

    splitmix(tmp_path, "export", "latest", str(tmp_path / "model"), "--client", "0")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    of_most = "of the client that spent most. It"
    assert f"Epsilon: {shown} at delta 1e-05, {of_most} {COVERS[strategy]}" in card

    # Until the run has finished, the rows are all there is.
    (run.path / "summary.json").unlink()
    assert sentence in splitmix(tmp_path, "show")


def test_epsilons_of_several_methods_are_told_apart(tmp_path: Path) -> None:
    for strategy in COVERS:
        fit(tmp_path, strategy=strategy, task="generation", label=strategy)
    compared = splitmix(tmp_path, "compare", *COVERS)
    for strategy, covers in COVERS.items():
        assert f"{strategy}: epsilon {covers}" in compared.replace("strategy ", "")
