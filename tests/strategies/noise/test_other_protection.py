"""Charges of rounds that are repeated with another noise, or mixed in another way."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import DPSL, DPCutMixSL, DPMixSL
from flwr_splitmix.testing.resume import InterruptionError, StopIn
from tests.strategies.noise.honest import Sent, new_run, noised, run, truth

MORE = GaussianNoise(sigma_s=40.0, sigma_y=20.0)


@pytest.mark.parametrize(
    ("kind", "then"),
    [
        (noised(DPSL), partial(DPSL, noise=MORE)),
        (noised(DPMixSL, alpha=1.0), noised(DPMixSL, alpha=1.0, k=4)),
        (noised(DPCutMixSL, k=3), noised(DPCutMixSL, k=2)),
    ],
    ids=["more noise", "larger groups", "smaller groups"],
)
def test_a_round_that_is_repeated_otherwise_has_no_epsilon(
    kind: Any, then: Any, tmp_path: Path
) -> None:
    """The first attempt's price is not the second's, and no plan of it is known any more."""
    home, releases = new_run(tmp_path), Sent()
    with pytest.raises(InterruptionError):
        run(kind, rounds=3, run=home, releases=releases, watch=[StopIn(2, 2)])
    outcome = run(then, rounds=3, run=Run.open(home.id, home=tmp_path), releases=releases)
    for client in range(4):
        assert truth(releases, client) <= outcome.by_client(client)
        assert outcome.by_client(client) == outcome.by_server(client) == math.inf
        assert "length, mixer or noise is not known" in outcome.said(client)


def lose_one(clients: Any) -> None:
    clients[1].fails_at = (2, 1)


def test_who_was_lost_before_the_checkpoint_has_no_epsilon_with_another_noise(
    tmp_path: Path,
) -> None:
    home, releases = new_run(tmp_path), Sent()
    options: dict[str, Any] = {"min_nodes": 2, "run": home, "releases": releases}
    run(noised(DPSL), rounds=2, prepare=lose_one, **options)
    options["run"] = Run.open(home.id, home=tmp_path)
    outcome = run(partial(DPSL, noise=MORE), rounds=3, **options)
    for client in (0, 2, 3):
        assert outcome.by_client(client) <= outcome.by_server(client) < math.inf
    assert outcome.by_client(1) == outcome.by_server(1) == math.inf


def test_another_noise_after_whole_rounds_is_counted(tmp_path: Path) -> None:
    home, releases = new_run(tmp_path), Sent()
    spent = run(noised(DPSL), rounds=2, run=home, releases=releases).by_client(0)
    more = partial(DPSL, noise=MORE)
    outcome = run(more, rounds=3, run=Run.open(home.id, home=tmp_path), releases=releases)
    alike = run(noised(DPSL), rounds=3)
    for client in range(4):
        assert spent < outcome.by_client(client) <= outcome.by_server(client)
        assert outcome.by_server(client) < alike.by_client(client)
