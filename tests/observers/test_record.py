"""What is recorded of clients and messages, and of mixtures, is what happened."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from flwr_splitmix.events import Exchange, RoundDone, StepDone
from flwr_splitmix.mixers import EmptyMixtureError, Mixed, Plan, RandomCutout, Upload
from flwr_splitmix.observers import ClientTimes, ExchangeKinds, KeptMixtures, Observer
from flwr_splitmix.observers.exchange_kinds import MAX_KINDS, describe
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.selection import select
from flwr_splitmix.strategies import PSL, CutMixSL, MixupSL, SplitStrategy
from flwr_splitmix.testing.toy import Toy
from tests.toy_runs import CLIENTS, FAILING, ROUNDS, SECRET


def done(number: int, seconds: dict[int, float], failures: dict[int, str]) -> RoundDone:
    return RoundDone(
        server_round=number, num_rounds=9, seconds=1.0, steps=1, step_seconds=1.0,
        clients_alive=len(seconds), client_seconds=seconds, failures=failures,
    )  # fmt: skip


def test_clients_are_counted_with_their_newest_reasons_and_go_on_from_a_state() -> None:
    times = ClientTimes()
    times.on_round(done(1, {0: 1.0, 1: 2.0}, {}))
    again = ClientTimes()
    again.restore(json.loads(json.dumps(times.state())))
    for number in range(2, 9):
        again.on_round(done(number, {0: 1.0, 1: 0.5}, {1: f"reason {number}"}))
    state = again.state()
    assert (state["0"]["rounds"], state["0"]["seconds"], state["0"]["slowest"]) == (8, 8.0, 7)
    assert (state["1"]["rounds"], state["1"]["failed"], state["1"]["slowest"]) == (1, 7, 1)
    assert [number for number, _ in state["1"]["failures"]] == [4, 5, 6, 7, 8]


def test_no_value_of_a_message_is_kept() -> None:
    kinds = ExchangeKinds()
    payload = {
        "smashed": [torch.full((2, 3), 0.123), None], "labels": torch.tensor([7, 8]),
        "word": "private", "number": 42, "nothing": None, "none": [None, [None]],
    }  # fmt: skip
    for count in range(3):
        kinds.on_exchange(Exchange(1, count, "step", "up", payload, 10))
    (kind,) = kinds.state()["kinds"]
    assert (kind["count"], kind["bytes"]) == (3, 30)
    assert kind["holds"] == {
        "smashed": "float32 (2, 3)", "labels": "int64 (2)", "word": "text",
        "number": "a whole number",
    }  # fmt: skip
    text = json.dumps(kinds.state())
    assert not [value for value in ("0.12", "private", "42", "7") if value in text]


def test_clients_do_not_choose_how_long_the_record_grows() -> None:
    kinds = ExchangeKinds()
    for number in range(3 * MAX_KINDS):
        payload = {f"{number}-{'x' * 10_000}": number, **{str(n): n for n in range(1000)}}
        kinds.on_exchange(Exchange(1, 0, "step", "up", payload, 1))
    state = kinds.state()["kinds"]
    assert len(state) == MAX_KINDS + 1
    assert sum(kind["count"] for kind in state) == 3 * MAX_KINDS
    assert len(json.dumps(state)) < 1000 * MAX_KINDS
    again = ExchangeKinds()
    again.restore(json.loads(json.dumps(kinds.state())))
    assert again.state() == kinds.state()
    again.on_exchange(Exchange(1, 0, "step", "up", {"one": 1}, 1))
    assert len(again.state()["kinds"]) == MAX_KINDS + 1


@pytest.mark.parametrize(
    ("value", "description"),
    [
        ([torch.zeros(1), torch.zeros(1)], "2 x float32 (1)"),
        ([{"share": "patches", "seed": 3}], "share of the plan"),
        ({"a": 1}, "plain values"),
        (True, "yes or no"),
        (b"secret", "bytes"),
    ],
)
def test_values_are_described(value: object, description: str) -> None:
    assert describe(value) == description


def test_a_run_has_the_record(toy_home: Path) -> None:
    (run,) = select(["plain"], toy_home)
    clients = run.record["clients"]
    assert {client: entry["rounds"] for client, entry in clients.items()} == {
        str(client): ROUNDS - (client == FAILING) for client in range(CLIENTS)
    }
    assert clients[str(FAILING)]["failures"] == [[2, SECRET]]


def test_all_files_of_a_run_are_like_any_other_but_for_its_clients_states(
    toy_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "any").touch()
    (run, _) = select(["mixed"], toy_home)
    files = [file for file in run.path.rglob("*") if file.is_file()]
    modes = {file: stat.S_IMODE(file.stat().st_mode) for file in files}
    states = {file for file in files if run.clients_dir in file.parents}
    assert {modes[file] for file in states} == {0o600}
    assert {modes[file] for file in modes.keys() - states} == {
        stat.S_IMODE((tmp_path / "any").stat().st_mode)
    }


def test_a_resumed_runs_record_is_that_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    toy, counts = Toy(clients=2), []
    for parts in ((4,), (2, 4)):
        run = Run.create({}, name="x", home=tmp_path)
        for rounds in parts:
            strategy = PSL(toy.upper(), device="cpu", steps_per_round=1, run=run)
            strategy.fit(toy.make_clients(), rounds)
        kinds = run.record["messages"]["kinds"]
        counts.append([(kind["phase"], kind["count"], kind["bytes"]) for kind in kinds])
        assert [entry["rounds"] for entry in run.record["clients"].values()] == [4, 4]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("kind", "each"), [(CutMixSL, 1), (MixupSL, 2), (PSL, 1)], ids=lambda value: str(value)
)
def test_who_sent_each_patch_of_a_mixture(kind: type[SplitStrategy], each: int) -> None:
    toy, mixtures = Toy(clients=4, batch=2), KeptMixtures(3)
    strategy = kind(toy.upper(), device="cpu", steps_per_round=1, observers=[mixtures])
    strategy.fit(toy.make_clients(shares=strategy.mixer.shares), 1)
    groups = 4 if kind is PSL else 2
    assert len(mixtures.newest) == min(groups, 3)
    for mixture in mixtures.newest:
        assert (mixture.rows, mixture.columns) == toy.grid
        counts = [sum(member["patches"][p] for member in mixture.members) for p in range(6)]
        assert counts == [each] * 6
        assert sum(member["lam"] for member in mixture.members) == pytest.approx(1)
        assert min(mixture.norms) >= 0
        assert max(mixture.norms) > 0
        assert mixture.image().shape == (2 * 16, 3 * 16, 3)
        assert mixture.image().max() == 255


class EmptyAt(RandomCutout):
    """A mixer whose steps of these numbers, counted over all rounds, have no patch of anybody."""

    def __init__(self, *empty: int) -> None:
        super().__init__(0.5)
        self.empty, self.merged = empty, 0

    def merge(self, uploads: Mapping[int, Upload], plan: Plan, **options: Any) -> Mixed:
        self.merged += 1
        if self.merged - 1 in self.empty:
            raise EmptyMixtureError("nobody sent a patch")
        return super().merge(uploads, plan, **options)


@pytest.mark.parametrize(("empty", "of_round"), [((2,), 2), ((2, 3), 1), ((3,), 2)])
def test_mixtures_are_those_of_their_round(
    tmp_path: Path, empty: tuple[int, ...], of_round: int
) -> None:
    """If a round's first step has none, those of the round before do not get its number."""
    toy, run = Toy(clients=2, batch=2), Run.create({}, name="x", home=tmp_path)
    first: dict[int, list[float]] = {}

    class Norms(Observer):
        def on_step(self, event: StepDone) -> None:
            assert event.mixed is not None
            sample = event.mixed.smashed[0].detach().float().norm(dim=-1)
            first.setdefault(event.server_round, sample.tolist())

    strategy = SplitStrategy(
        toy.upper(), mixer=EmptyAt(*empty), device="cpu", steps_per_round=2, run=run,
        observers=[Norms(), KeptMixtures(1)],
    )  # fmt: skip
    strategy.fit(toy.make_clients(shares=strategy.mixer.shares), 2)
    assert run.mixtures["round"] == of_round
    assert run.mixtures["mixtures"][0]["norms"] == pytest.approx(first[of_round])


def test_a_full_disk_costs_the_mixtures_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, value: object, **how: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flwr_splitmix.observers.mixtures.write_json", full)
    toy, run = Toy(clients=2, batch=2), Run.create({}, name="x", home=tmp_path)
    strategy = CutMixSL(
        toy.upper(), device="cpu", steps_per_round=1, observers=[KeptMixtures(1)], run=run
    )
    strategy.fit(toy.make_clients(), 2)
    assert [row["round"] for row in run.rows] == [1, 2]
    assert "the mixtures could not be written: No space left on device" in caplog.text


def test_mixtures_are_kept_only_if_asked_for(toy_home: Path) -> None:
    plain, mixed = select(["plain"], toy_home)[0], select(["mixed"], toy_home)[0]
    assert plain.mixtures == {}
    assert mixed.mixtures["round"] == ROUNDS
    assert mixed.mixtures["mixtures"]
