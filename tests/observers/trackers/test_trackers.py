"""Trackers write what a run's rows say, read back by the libraries themselves."""

from __future__ import annotations

import csv
import importlib.util
import logging
import os
import platform
import shutil
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from torch.utils.data import Dataset

from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.events import RoundDone, RunEnded, RunStarted
from flwr_splitmix.links import LinkError
from flwr_splitmix.observers import KeptMixtures, Observer
from flwr_splitmix.observers.trackers import Tracker, TrackerError, make_trackers
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.server.aggregation import AggregatorError
from flwr_splitmix.strategies import PSL, SFL, CutMixSL
from flwr_splitmix.testing.toy import Toy
from tests.toy_runs import SECRET, add_run
from tests.waiting import wait_for

CONFIG = {
    "label": "tracked",
    "ssl-keyfile": "/secret/key.pem",
    "link-address": "10.0.0.1:9",
    "dataset": "/home/secret/pictures",
    "model": "~/secret/encoder",
}


SHOWN = ("loss", "accuracy", "uplink_bytes", "seconds", "clients_failed")


def track(home: Path, names: str) -> Run:
    """Do a run of three rounds, in two parts, with trackers and mixtures."""
    mixtures = KeptMixtures(1)
    observers = [mixtures, *make_trackers(names, mixtures)]
    options: dict[str, Any] = {"config": CONFIG, "observers": tuple(observers), "k": 2}
    return add_run(home, CutMixSL, **options)


def test_csv_has_a_row_a_round(tmp_path: Path) -> None:
    run = track(tmp_path, "csv")
    with (run.path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == [1, 2, 3]
    for name in SHOWN:
        expected = [float(row[name]) for row in run.rows]
        assert [float(row[name]) for row in rows] == pytest.approx(expected, rel=1e-5)
    total = sum(row["uplink_bytes"] for row in run.rows)
    assert float(rows[-1]["uplink_bytes_total"]) == total


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    toy, run = Toy(clients=2), Run.create({}, name="x", home=tmp_path)
    for rounds in (2, 4):
        strategy = PSL(
            toy.upper(), device="cpu", steps_per_round=1, run=run, observers=make_trackers("csv")
        )
        strategy.fit(toy.make_clients(), rounds)
    with (run.path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4]
    total = sum(row["downlink_bytes"] for row in run.rows)
    assert float(rows[-1]["downlink_bytes_total"]) == total


def test_tensorboard_has_scalars_texts_and_pictures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = track(tmp_path, "tensorboard")
    read = EventAccumulator(str(run.path / "tensorboard"))
    read.Reload()
    for name in SHOWN:
        written = {event.step: event.value for event in read.Scalars(name)}
        assert written == {row["round"]: pytest.approx(row[name], rel=1e-5) for row in run.rows}
    texts = {
        tag.removesuffix("/text_summary"): b"".join(
            event.tensor_proto.string_val[0] for event in read.Tensors(tag)
        ).decode()
        for tag in read.Tags()["tensors"]
    }
    assert SECRET in texts["failures"]
    assert "| label | tracked |" in texts["configuration"]
    assert "| dataset | pictures |" in texts["configuration"]
    assert "secret" not in texts["configuration"]
    assert "10.0.0.1" not in texts["configuration"]
    assert "| rounds | 3 |" in texts["summary"]
    assert "| model | encoder |" in texts["summary"]
    (image, *_) = read.Images("mixture-0")
    assert (image.width, image.height) == (3 * 16, 2 * 16)


def test_tensorboard_shows_a_run_that_began_anew_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    toy, run = Toy(clients=2), Run.create({}, name="x", home=tmp_path)
    for _ in range(2):
        strategy = PSL(
            toy.upper(),
            device="cpu",
            steps_per_round=1,
            run=run,
            observers=make_trackers("tensorboard"),
            checkpoint_every=3,
        )
        strategy.fit(toy.make_clients(), 2)
        shutil.rmtree(run.path / "checkpoints")  # as if killed: rows, but no checkpoint yet
        (run.path / "summary.json").unlink()
    read = EventAccumulator(str(run.path / "tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("loss")] == [1, 2]


def test_mlflows_file_store_has_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = track(tmp_path, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("flwr-splitmix")
    (tracked,) = client.search_runs([experiment.experiment_id])
    assert (tracked.info.status, tracked.info.run_name) == ("FINISHED", "tracked")
    assert tracked.data.tags["splitmix.run"] == run.id
    assert tracked.data.params["strategy"] == "CutMixSL"
    assert "ssl-keyfile" not in tracked.data.params
    assert tracked.data.params["dataset"] == "pictures"
    for name in SHOWN:
        history = client.get_metric_history(tracked.info.run_id, name)
        assert {point.step: point.value for point in history} == {
            row["round"]: row[name] for row in run.rows
        }
    folders = {file.path for file in client.list_artifacts(tracked.info.run_id)}
    assert folders == {"failures", "mixture-0", "summary.json"}


def records_of(file: Path) -> bytes:
    """Return the contents of a file of W&B's records (LevelDB's log format), whole."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        size = struct.unpack("<H", data[at + 4 : at + 6])[0]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
    return whole


def test_wandb_offline_writes_the_run_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr(socket, "gethostname", lambda: "a-secret-host")
    run = track(tmp_path, "wandb-offline")
    (folder,) = (run.path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("run-*.wandb")
    assert file.name == f"run-{run.id}.wandb"
    accuracies = [str(row["accuracy"]).encode() for row in run.rows]
    # W&B's own process writes; on a busy machine it is done a moment after the run's end.
    wait_for("every round on the disk", lambda: all(a in records_of(file) for a in accuracies))
    written = records_of(file)
    for name in (*SHOWN, "uplink_bytes_total"):
        assert name.encode() in written
    assert b"tracked" in written
    assert b"/secret/" not in written
    of_the_machine = ("a-secret-host", sys.executable, os.getcwd(), platform.platform())
    leaked = [fact for fact in of_the_machine if fact.encode() in written]
    assert not leaked
    files = {file.name for file in (folder / "files").iterdir()}
    assert not files & {"wandb-metadata.json", "requirements.txt", "output.log"}
    assert list((folder / "files" / "media" / "images").glob("mixture-0_*.png"))
    assert list((folder / "files" / "media" / "html").glob("failures_*.html"))


@pytest.mark.parametrize(
    ("tracker", "package", "extra"),
    [
        ("tensorboard", "tensorboard", "tensorboard"),
        ("wandb", "wandb", "wandb"),
        ("wandb-offline", "wandb", "wandb"),
        ("mlflow", "mlflow", "mlflow"),
    ],
)
def test_a_missing_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tracker: str, package: str, extra: str
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "flwr_splitmix.observers.trackers.choice.find_spec",
        lambda name: None if name == package else find_spec(name),
    )
    message = rf"{tracker}' needs {package}, .*: pip install '\.\[{extra}\]'"
    with pytest.raises(TrackerError, match=message):
        make_trackers(f"csv,{tracker}")


class Failing(Tracker):
    """A tracker whose library fails from the second round on."""

    calls = 0

    def begin(self, event: RunStarted, config: Mapping[str, Any]) -> None:
        pass

    def numbers(self, values: Mapping[str, float], server_round: int) -> None:
        self.calls += 1
        if server_round == 2:
            raise ConnectionError("nobody answers")

    def text(self, name: str, text: str, server_round: int) -> None:
        pass

    def picture(self, name: str, image: np.ndarray, server_round: int) -> None:
        pass

    def finish(self, summary: Mapping[str, Any], error: str) -> None:
        self.calls += 100


class Rounds(Observer):
    """Counts the rounds."""

    done = 0

    def on_round(self, event: RoundDone) -> None:
        self.done += 1


def test_a_tracker_that_fails_costs_itself(caplog: pytest.LogCaptureFixture) -> None:
    toy, failing, rounds = Toy(clients=2), Failing(), Rounds()
    strategy = PSL(toy.upper(), device="cpu", steps_per_round=1, observers=[failing, rounds])
    with caplog.at_level(logging.WARNING, logger="flwr.splitmix"):
        strategy.fit(toy.make_clients(), 3)
    assert rounds.done == 3
    assert failing.calls == 2
    assert caplog.text.count("Failing is given up, the run continues: ConnectionError: nobody") == 1


def test_a_tracker_that_lacks_a_method_is_not_made() -> None:
    """Otherwise failures of clients, which are texts, would be dropped without a word."""
    attributes = {name: value for name, value in vars(Failing).items() if name != "text"}
    with pytest.raises(TypeError, match=r"abstract method '?text"):
        type("Lacking", (Tracker,), attributes)()


class Texts(Failing):
    """Keeps every text that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def numbers(self, values: Mapping[str, float], server_round: int) -> None:
        pass

    def text(self, name: str, text: str, server_round: int) -> None:
        self.texts.append(text)

    def finish(self, summary: Mapping[str, Any], error: str) -> None:
        self.texts.append(error)


def test_errors_reach_trackers_without_names_of_folders() -> None:
    """They go to other machines, which names of users and folders do not concern."""
    tracker, why = Texts(), "OSError: no such file: '/home/secret/labels.csv'"
    tracker.on_start(RunStarted("PSL", 1, 1))
    tracker.on_round(
        RoundDone(
            server_round=1,
            num_rounds=1,
            seconds=0.1,
            steps=1,
            step_seconds=0.1,
            clients_alive=1,
            failures={0: why},
        )
    )
    tracker.on_end(RunEnded(0, {}, error=why, public="OSError; the run's log says more"))
    assert tracker.texts == [
        "client 0: OSError: no such file: '.../labels.csv'",
        "OSError; the run's log says more",
    ]


JANE = "Jane Doe, born 1970-01-01"


class OfPatients(Dataset[Any]):
    """A data set that quotes a record when it cannot read it."""

    def __init__(self, data: ExampleSet) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        return self.data[index] if index else float(JANE)


@pytest.mark.parametrize("min_nodes", [2, 3])
def test_what_an_error_quotes_is_in_the_log_alone(
    min_nodes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Trackers may be others' machines, and write files that all can read."""
    toy, tracker = Toy(clients=3), Texts()
    run = Run.create({}, name="toy", home=tmp_path)
    strategy = PSL(toy.upper(), device="cpu", observers=[tracker], run=run, min_nodes=min_nodes)
    clients = toy.make_clients()
    clients[1].batches.data = OfPatients(clients[1].batches.data)
    with pytest.raises(LinkError) if min_nodes == 3 else nullcontext():
        strategy.fit(clients, 1)
    assert f"ValueError: could not convert string to float: '{JANE}'" in caplog.text
    assert "client 1: ValueError; the log says more" in "".join(tracker.texts)
    assert JANE not in "".join(tracker.texts)
    assert not [f for f in run.path.rglob("*") if f.is_file() and b"Jane" in f.read_bytes()]


def test_a_run_that_fails_tells_a_tracker_no_text_of_other_code() -> None:
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        raise ValueError(JANE)

    toy, tracker = Toy(clients=2), Texts()
    strategy = SFL(toy.upper(), device="cpu", observers=[tracker])
    with pytest.raises(ValueError, match=JANE):
        strategy.fit(toy.make_clients(), 1, evaluate_fn=evaluate)
    assert tracker.texts == ["ValueError; the log says more"]


def quoting(error: Exception) -> Exception:
    error.__cause__ = ValueError(JANE)
    return error


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (RunError("cannot read /home/jane/r.json"), "RunError: cannot read .../r.json"),
        (AggregatorError("Krum needs 4 clients"), "AggregatorError: Krum needs 4 clients"),
        (quoting(RunError(JANE)), "RunError; the run's log says more"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_a_run_that_fails_tells_a_tracker_its_own_errors(
    failure: BaseException, text: str, tmp_path: Path
) -> None:
    """Not by type alone; of an interruption no log says more."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        raise failure

    toy, tracker = Toy(clients=2), Texts()
    run = Run.create({}, name="toy", home=tmp_path)
    strategy = SFL(toy.upper(), device="cpu", observers=[tracker], run=run)
    with pytest.raises(type(failure)):
        strategy.fit(toy.make_clients(), 1, evaluate_fn=evaluate)
    assert tracker.texts == [text]


def test_a_tracker_without_a_place_ends_the_run_before_it_trains() -> None:
    toy, rounds = Toy(clients=2), Rounds()
    observers = [*make_trackers("csv"), rounds]
    strategy = PSL(toy.upper(), device="cpu", observers=observers)
    with pytest.raises(ValueError, match="CsvTracker has nowhere to write: give it a folder"):
        strategy.fit(toy.make_clients(), 1)
    assert rounds.done == 0
