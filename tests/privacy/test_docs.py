"""What docs/privacy.md says is computed is what is computed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.clients import SplitClient
from flwr_splitmix.testing.toy import Toy

DOCS = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS, flags=re.MULTILINE | re.DOTALL)


def first_figure(command: list[str]) -> float:
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return float(result.stdout.split()[1])


def test_its_commands_print_its_figures() -> None:
    commands = [shlex.split(block.replace("\\\n", ""), comments=True)[1:] for block in blocks("sh")]
    assert len(commands) == 3
    paper, real, needed = commands
    assert first_figure(paper) == pytest.approx(6.71, abs=0.005)
    assert first_figure([*paper, "--passes", "600"]) == pytest.approx(862.2, abs=0.05)
    assert f"epsilon {first_figure(real):.0f} for one epoch" in DOCS
    assert f"training, {first_figure([*real, '--passes', '600']):,.0f}." in DOCS
    phrase = f"standard deviation of {first_figure(needed):.0f} on numbers"
    assert phrase in DOCS
    assert f"({first_figure([*needed, '--passes', '1']):.1f} for a single" in DOCS
    clipped = [*needed, "--clip", "patch", "--clip-norm", "1"]
    assert f"asks for {first_figure(clipped):.0f}," in DOCS


def test_its_program_runs_and_stays_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = (block for block in blocks("python") if "would_exceed" in block)
    exec(compile(program, "docs/privacy.md", "exec"), {})
    line = capsys.readouterr().out.splitlines()[-1]
    spent = float(line.removeprefix("epsilon ").split()[0])
    assert 7 < spent <= 8


def test_the_strategy_and_the_client_of_the_page_fit_together() -> None:
    (program,) = (block for block in blocks("python") if "DPCutMixSL(" in block)
    toy = Toy(clients=2, batch_norm=False)
    names: dict[str, Any] = {"upper": toy.upper(), "lower": toy.lower(), "data": toy.data(0)}
    exec(compile(program, "docs/privacy.md", "exec"), names)
    partner = SplitClient(toy.lower(), toy.data(1))
    names["strategy"].fit([names["client"], partner], 1)
    epsilon = names["client"].guard.ledger.epsilon(1e-5)
    assert 0 < epsilon <= min(50, names["strategy"].epsilons()[0])
