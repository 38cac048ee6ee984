"""What a node stores of a round, however the round ends for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context

from flwr_splitmix import SplitClient, SplitClientApp
from flwr_splitmix.clients import ClientError, PrivacyBudget, exchange
from flwr_splitmix.data import DataError
from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.journal import read_journal
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.strategies import DPSL, PSL
from flwr_splitmix.testing.toy import Toy
from tests.links.fake_grid import FakeGrid, OneAtATime, OnFakeGrid, toy_app

TOY = Toy(clients=1, tests=6)


class FailsInStep(OneAtATime):
    """Fails in the second step of a round."""

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        reply = super().step(**arguments)
        if arguments["number"] == 1:
            raise RuntimeError("no power")
        return reply


def run(nodes: Path, evaluation: Any = "none", **options: Any) -> None:
    grid = FakeGrid(toy_app(TOY, **options), 1, **{"state-dir": str(nodes)})
    strategy = PSL(TOY.upper(), device="cpu", seed=7, evaluation=evaluation)
    strategy.link = OnFakeGrid(StreamLink(address="127.0.0.1:0", run="psl-1"), grid)
    try:
        strategy.start(None, to_arrays(TOY.lower().state_dict()), 1)  # type: ignore[arg-type]
    finally:
        grid.wait()


def test_a_nodes_limit_ends_a_run_that_knows_nothing_of_it(tmp_path: Path) -> None:
    """Over real gRPC, the run has no budget of its own, but the node's operator has set one."""
    toy = Toy(clients=1, batch_norm=False)
    app = toy_app(toy, repeatable_secrets=False)
    uploads = []
    for name in ("psl-1", "psl-2"):
        grid = FakeGrid(app, 1, **{"state-dir": str(tmp_path), "max-epsilon": 2.0})
        noise = GaussianNoise(sigma_s=40.0, sigma_y=20.0)
        strategy = DPSL(toy.upper(), noise=noise, device="cpu", steps_per_round=500)
        strategy.link = OnFakeGrid(StreamLink(address="127.0.0.1:0", run=name), grid)
        try:
            strategy.start(None, to_arrays(toy.lower().state_dict()), 3)  # type: ignore[arg-type]
        finally:
            grid.wait()
        assert strategy.stop_reason == "the privacy budget of client 0 is spent"
        audit = read_journal(tmp_path / "audit-0.jsonl")
        uploads.append(sum(entry["run"] == name and entry.get("bytes", 0) > 0 for entry in audit))
        assert max(entry.get("epsilon") or 0 for entry in audit) <= 2.0
    assert uploads[0] > 10 > uploads[1]


def stored_state(nodes: Path) -> tuple[int, dict[str, Any]]:
    stored = ClientStore(nodes / "psl-1").load(0)
    assert stored is not None
    return stored[0], stored[2]


def charged(nodes: Path) -> str:
    """Return the lines of the node's privacy ledger."""
    return json.dumps(read_journal(nodes / "privacy-ledger-0.jsonl"))


def test_who_is_left_out_keeps_what_it_has_sent(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="client 0: RuntimeError"):
        run(tmp_path, kind=FailsInStep, privacy=PrivacyBudget())
    server_round, meta = stored_state(tmp_path)
    assert (server_round, meta["drawn"]) == (1, 2)
    assert "training" in charged(tmp_path)


def test_an_evaluation_stays_in_the_ledger(tmp_path: Path) -> None:
    for evaluation in ("none", "federated"):
        run(tmp_path / evaluation, evaluation, privacy=PrivacyBudget())
    without, with_it = (charged(tmp_path / e) for e in ("none", "federated"))
    assert "evaluation" not in without
    assert "evaluation" in with_it


@pytest.mark.parametrize(
    ("error", "logged", "traceback"),
    [
        (
            DataError("photos/7.png is not a picture"),
            "DataError: photos/7.png is not a picture",
            False,
        ),
        (ClientError("this client has no data"), "this client has no data", False),
        (KeyError("patient 7"), "this node has failed", True),
    ],
)
def test_a_nodes_log_has_a_traceback_of_what_nobody_foresaw_alone(
    error: Exception, logged: str, traceback: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server reads the type alone of an error whose text may have values of the data."""

    def client_fn(context: Context) -> SplitClient:
        raise error from OSError("what is behind it")

    grid = FakeGrid(SplitClientApp(client_fn), 1, **{"state-dir": str(tmp_path)})
    strategy = PSL(TOY.upper(), device="cpu", evaluation="none")
    strategy.link = OnFakeGrid(StreamLink(address="127.0.0.1:0", run="psl-1"), grid)
    with pytest.raises(LinkError) as ended:
        strategy.start(None, to_arrays(TOY.lower().state_dict()), 1)  # type: ignore[arg-type]
    grid.wait()
    (record,) = [r for r in caplog.records if r.getMessage().startswith("client 0, round 1: ")]
    assert logged in record.getMessage()
    assert ("Traceback" in caplog.text) == traceback
    assert "7" not in str(ended.value)


def test_a_round_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    save = ClientStore.save

    def count(self: ClientStore, index: int, round: int, *state: Any) -> Path:
        written.append(round)
        return save(self, index, round, *state)

    monkeypatch.setattr(ClientStore, "save", count)
    run(tmp_path, "federated")
    assert written == [1]
