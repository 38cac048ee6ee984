"""Baselines agree with each other, with split learning, and with Flower's average."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.data.examples import Example
from flwr_splitmix.experiments.baselines import FedAvg, Standalone, WholeClient, WholeModels
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.observers import Observer, RoundDone
from flwr_splitmix.optimizers import adamw
from flwr_splitmix.runs import Run
from flwr_splitmix.schedule import constant
from flwr_splitmix.testing.toy import Toy
from tests.experiments.conftest import RunCell, cell_of

SIZES = (20, 40)


def examples(size: int) -> Dataset[Example]:
    return cast(Dataset[Example], TensorDataset(torch.randn(size, 6), torch.randint(3, (size,))))


def make_clients() -> list[WholeClient]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    test = examples(30)
    return [
        WholeClient(
            copy.deepcopy(model),
            examples(size),
            batch_size=10,
            benchmark_data=test,
            optimizer=adamw(0.01),
            schedule=constant,
            device="cpu",
        )
        for size in SIZES
    ]


def weights(client: WholeClient) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in client.segment.state_dict().items()}


def test_fedavg_is_flowers_average_of_what_the_clients_learned_alone() -> None:
    alone = make_clients()
    Standalone(seed=5).fit(alone, 1)
    result = FedAvg(seed=5).fit(make_clients(), 1)
    averaged = to_tensors(result.arrays)
    first, second = (weights(client) for client in alone)
    for name, tensor in averaged.items():
        expected = (SIZES[0] * first[name] + SIZES[1] * second[name]) / sum(SIZES)
        assert torch.allclose(tensor.double(), expected.double(), rtol=1e-6, atol=1e-7), name


def test_fedavg_goes_on_from_the_average_and_keeps_the_clients_optimizers() -> None:
    """Two rounds of one client equal two epochs without interruption."""
    (whole, _), (client, _) = make_clients(), make_clients()
    Standalone(seed=5).fit([whole], 2)
    FedAvg(seed=5).fit([client], 2)
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(client)[name]), name


def test_every_client_takes_the_mean_number_of_steps_and_is_scored() -> None:
    clients = make_clients()
    strategy = Standalone(seed=5, evaluation="benchmark")
    strategy.fit(clients, 2)
    assert [client.batches.drawn for client in clients] == [6, 6]
    each = [client.score() for client in clients]
    row = strategy.rows[-1]
    hits = [reply["correct"] / 30 for reply in each]
    assert row["accuracy"] == pytest.approx(np.mean(hits))
    assert row["accuracy_spread"] == pytest.approx(np.std(hits))
    assert (row["steps"], row["uplink_bytes"], row["downlink_bytes"]) == (3, 0, 0)


def test_fedavg_sends_every_model_both_ways() -> None:
    clients = make_clients()
    strategy = FedAvg(seed=5)
    strategy.fit(clients, 1)
    row = strategy.rows[-1]
    size = sum(t.nbytes for t in clients[0].segment.state_dict().values())
    assert row["uplink_bytes"] == row["downlink_bytes"] == 2 * size


@pytest.mark.parametrize("kind", [Standalone, FedAvg])
def test_a_resumed_run_goes_on_from_its_checkpoints_alone(
    kind: type[WholeModels], tmp_path: Path
) -> None:
    """They have models, optimizers and data positions; no other state of clients is written."""
    whole = make_clients()
    kind(seed=5).fit(whole, 4)
    run = Run.create({}, name="r", home=tmp_path)
    kind(seed=5, run=run).fit(make_clients(), 2)
    clients = make_clients()
    resumed = Run.open(run.id, home=tmp_path)
    kind(seed=5, run=resumed).fit(clients, 4)
    assert [row["round"] for row in resumed.rows] == [1, 2, 3, 4]
    for expected, client in zip(whole, clients, strict=True):
        assert client.batches.drawn == expected.batches.drawn
        for name, tensor in weights(expected).items():
            assert torch.equal(tensor, weights(client)[name]), name
    assert not list(run.clients_dir.rglob("*.safetensors"))


def test_observers_see_the_loss_and_the_bytes_of_whole_models() -> None:
    class Rounds(Observer):
        def __init__(self) -> None:
            self.events: list[RoundDone] = []

        def on_round(self, event: RoundDone) -> None:
            self.events.append(event)

    observer = Rounds()
    strategy = FedAvg(seed=5, observers=[observer])
    strategy.fit(make_clients(), 2)
    rows = strategy.rows
    assert [event.row for event in observer.events] == rows
    assert [event.loss for event in observer.events] == [row["loss"] for row in rows]
    assert all(event.uplink_bytes == event.downlink_bytes > 0 for event in observer.events)


def test_other_clients_are_refused() -> None:
    client = SplitClient(nn.Linear(6, 3), examples(20), device="cpu")
    with pytest.raises(TypeError, match="Standalone trains WholeClients"):
        Standalone().fit([client], 1)


def test_one_client_alone_is_its_own_pool_and_its_own_average(run: RunCell) -> None:
    rows = {
        method: run(cell_of(method, clients=1)).rows
        for method in ("Standalone", "Unsplit", "FedAvg", "PSL")
    }
    losses = {method: [row["loss"] for row in rounds] for method, rounds in rows.items()}
    assert losses["Unsplit"] == losses["Standalone"] == losses["FedAvg"]
    # The same computation, cut in two.
    assert losses["PSL"] == pytest.approx(losses["Standalone"], rel=1e-5)
    accuracies = {rounds[-1]["accuracy"] for rounds in rows.values()}
    assert len(accuracies) == 1


def test_unsplit_takes_as_many_steps_as_the_clients_do(run: RunCell) -> None:
    assert run(cell_of("Unsplit")).rows[-1]["steps"] == run(cell_of("PSL")).rows[-1]["steps"] == 2


def test_a_whole_model_is_scored_on_several_labels() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 3)).double()
    toy = Toy(multi_label=True, tests=30)
    client = WholeClient(
        model, toy.data(0), batch_size=4, benchmark_data=toy.test_data(0), device="cpu"
    )
    data = toy.test_data(0)
    assert data is not None
    reply = client.score()
    with torch.no_grad():
        logits = model(data.inputs).float()
    right = (logits > 0) == (data.labels > 0)
    assert reply["correct"] / reply["examples"] == pytest.approx(float(right.double().mean()))
    loss = nn.functional.binary_cross_entropy_with_logits(logits, data.labels.float())
    assert reply["loss"] / 30 == pytest.approx(float(loss), rel=1e-5)
    assert float(client.loss(logits, data.labels)) == pytest.approx(float(loss), rel=1e-5)
    assert -1 <= reply["scores"]["matthews"] <= 1
