"""The epsilon of clients that an interrupted round asked, until they are asked again."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.clients import ClientError
from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import DPSL
from flwr_splitmix.testing.resume import InterruptionError, StopIn
from tests.strategies.noise.honest import (
    Sent,
    check_order,
    new_run,
    noised,
    run,
    truth,
)

GONE = 2


def interrupt(home: Run, releases: Sent, at: int, **options: Any) -> Run:
    """Stop a run of all clients in the midst of a round; return it as another process opens it."""
    with pytest.raises(InterruptionError):
        run(noised(DPSL), rounds=at, run=home, releases=releases, watch=[StopIn(at, 2)], **options)
    return Run.open(home.id, home=home.path.parent.parent)


def without(clients: Any) -> None:
    """Have one client be away from now on."""

    def unreachable(*_: Any) -> dict[str, Any]:
        raise ClientError("the line is down")

    clients[GONE].attach = unreachable


@pytest.mark.parametrize("at", [1, 2])
def test_who_does_not_come_back_has_no_epsilon(
    at: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it sent in the interrupted round is in no checkpoint, and no batch has priced it."""
    releases = Sent()
    home = interrupt(new_run(tmp_path), releases, at)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        outcome = run(
            noised(DPSL), rounds=3, run=home, releases=releases, prepare=without, min_nodes=3
        )
    ledger = outcome.strategy.ledger
    assert ledger is not None
    assert truth(releases, GONE) > 0
    assert ledger.epsilons.pop(GONE) == math.inf
    assert outcome.strategy.rows[-1]["epsilon"] == math.inf
    assert f"client {GONE}: no epsilon" in ledger.report()
    assert "interrupted" in ledger.report()
    assert ledger.account({1, 2, 3}).epsilon == math.inf
    summary = json.loads((home.path / "summary.json").read_text())
    assert summary["epsilon"] == "inf"
    assert "interrupted" in summary["privacy"]
    warned = next(r for r in caplog.records if r.getMessage().startswith("privacy of"))
    assert warned.levelno == logging.WARNING
    others = [client for client in range(4) if client != GONE]
    check_order(outcome, others)
    assert all(math.isfinite(ledger.epsilons[client]) for client in others)


def test_who_comes_back_has_one_again(tmp_path: Path) -> None:
    home, releases = new_run(tmp_path), Sent()
    again = interrupt(home, releases, 2)
    away = run(noised(DPSL), rounds=3, run=again, releases=releases, prepare=without, min_nodes=3)
    assert away.strategy.rows[-1]["epsilon"] == math.inf
    outcome = run(noised(DPSL), rounds=4, run=Run.open(home.id, home=tmp_path), releases=releases)
    check_order(outcome, range(4))
    assert outcome.strategy.ledger is not None
    assert math.isfinite(outcome.strategy.rows[-1]["epsilon"])
    assert outcome.strategy.ledger.epsilons[GONE] >= truth(releases, GONE)


def test_repeated_secrets_owe_nothing_once_the_round_is_repeated(tmp_path: Path) -> None:
    releases = Sent()
    home = interrupt(new_run(tmp_path), releases, 2, repeatable=True)
    outcome = run(noised(DPSL), rounds=2, run=home, releases=releases, repeatable=True)
    assert math.isfinite(outcome.strategy.rows[-1]["epsilon"])
