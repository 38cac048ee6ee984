"""`flwr run apps/language` as a user does it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.apps import language_app
from tests.e2e.flower_run import Runner

pytestmark = pytest.mark.slow


def test_mixguard_runs_with_two_virtual_clients(runner: Runner, tmp_path: Path) -> None:
    small = {name.replace("_", "-"): value for name, value in language_app.TINY.items()}
    values = {
        **small,
        "strategy": "MixGuard",
        "num-server-rounds": 2,
        "generation-scores": True,
        "max-new-tokens": 2,
        "server-threads": 1,
    }
    ended = runner.run(values, tmp_path, app=language_app.APP)
    assert ended.status == "finished:completed", ended.details + ended.log
    assert "docs/mixguard.md says what it hides" in ended.log
    run = ended.run
    assert run is not None
    assert [row["clients_alive"] for row in run.rows] == [2, 2]
    for row in run.rows:
        assert math.isfinite(row["loss"])
        # The mean of the clients' perplexities, which differ a little.
        assert row["eval_perplexity"] == pytest.approx(math.exp(row["eval_loss"]), rel=0.05)
        assert 0 <= row["eval_rouge_l"] <= 1
    assert run.summary is not None
    assert (run.summary["strategy"], run.summary["clients"]) == ("MixGuard", 2)
