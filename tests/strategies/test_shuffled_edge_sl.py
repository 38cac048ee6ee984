"""Frozen edges: ids instead of labels, nothing back, and only edges that shuffle as asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.links import LinkError
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.mixers import FrozenEdge, Plan, SmashedShape, Upload
from flwr_splitmix.schedule import constant
from flwr_splitmix.segments import split_shuffled_edge
from flwr_splitmix.server.intake.checks import UploadError
from flwr_splitmix.server.intake.finite import FiniteCheck
from flwr_splitmix.server.intake.split import LabelRules, read_upload
from flwr_splitmix.strategies import (
    BatchShuffleSL,
    PatchShuffleSL,
    SpectralShuffleSL,
    SplitStrategy,
)
from flwr_splitmix.testing.recording import Recording
from flwr_splitmix.testing.toy import Examples, Toy, sgd
from tests.laws.makers import EDGES

EDGE = EDGES["PatchShuffleSL"]


def plan_of_ids() -> Plan:
    return FrozenEdge().plan([0], SmashedShape(4, 6, 3), np.random.default_rng(0))


def test_ids_are_looked_up_in_the_servers_table() -> None:
    table = torch.tensor([2, 0, 1, 1, 2])
    reply = {"smashed": [torch.zeros(4, 6, 3)], "labels": torch.tensor([4, 0, 0, 3])}
    upload = read_upload(
        reply, plan_of_ids(), 0, LabelRules(3), torch.float32, table, finite=FiniteCheck()
    )
    assert isinstance(upload.labels, Tensor)
    assert upload.labels.tolist() == [2, 2, 2, 1]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (torch.tensor([0, 1, 2, 5]), r"ids lie in 0\.\.5, expected 0\.\.4"),
        (torch.tensor([0, -1, 2, 3]), r"ids lie in -1\.\.3, expected 0\.\.4"),
        (torch.tensor([0, 1, 2]), r"ids have shape \(3,\) of torch.int64, expected \(4,\)"),
        (torch.tensor([0.0, 1.0, 2.0, 3.0]), "ids have shape .* of torch.float32"),
        ([0, 1, 2, 3], "uploaded no ids"),
    ],
)
def test_ids_out_of_range_are_refused(labels: Any, sentence: str) -> None:
    reply = {"smashed": [torch.zeros(4, 6, 3)], "labels": labels}
    with pytest.raises(UploadError, match=sentence):
        read_upload(
            reply,
            plan_of_ids(),
            0,
            LabelRules(3),
            torch.float32,
            torch.zeros(5).long(),
            finite=FiniteCheck(),
        )


def test_ids_without_a_table_are_refused() -> None:
    reply = {"smashed": [torch.zeros(4, 6, 3)], "labels": torch.arange(4)}
    with pytest.raises(UploadError, match="ids instead of labels, and the server has no labels"):
        read_upload(reply, plan_of_ids(), 0, LabelRules(3), torch.float32, finite=FiniteCheck())


def fit(toy: Toy, rounds: int, **options: Any) -> tuple[SplitStrategy, Recording, Any]:
    recording = Recording()
    strategy = PatchShuffleSL(
        toy.upper(),
        optimizer=sgd(0.1),
        schedule=constant,
        device="cpu",
        observers=[recording],
        **options,
    )
    clients = toy.make_clients(sgd(0.1))
    strategy.fit(clients, rounds)
    return strategy, recording, clients


def test_the_upper_segment_learns_the_servers_labels_and_nothing_goes_back() -> None:
    """The table says otherwise than the clients' own data: the table counts."""
    toy = Toy(clients=2, edge=EDGE)
    table = [(labels + 1) % toy.classes for labels in toy.labels()]
    strategy, recording, clients = fit(toy, 2, labels=table)
    for client in range(2):
        uploaded_ids = [up.payload["labels"] for up in recording.up[client] if up.payload]
        uploads = [step.uploads[client] for step in recording.steps]
        learned = [upload.labels for upload in uploads if isinstance(upload, Upload)]
        assert len(uploaded_ids) == len(learned) == 6
        for ids, labels in zip(uploaded_ids, learned, strict=True):
            assert isinstance(labels, Tensor)
            assert torch.equal(labels, table[client][ids])
        assert all(call.payload["gradient"] in (None, [None]) for call in recording.down[client])
    assert all(row["downlink_bytes"] == 0 for row in strategy.rows)
    untouched = toy.lower().state_dict()
    for client in clients:
        for name, parameter in client.segment.named_parameters():
            assert torch.equal(parameter, untouched[name])


def refused(toy: Toy, kind: Any = PatchShuffleSL, **options: Any) -> str:
    """Return why no client was let in."""
    strategy = kind(toy.upper(), device="cpu", **{"labels": toy.labels(), **options})
    with pytest.raises(LinkError) as error:
        strategy.fit(toy.make_clients(), 1)
    return str(error.value)


def test_a_trainable_edge_is_refused() -> None:
    class Learning(Toy):
        def lower(self) -> Any:
            return super().lower().requires_grad_(True)

    sentence = refused(Learning(clients=2, edge=EDGE))
    assert "its lower segment has trainable parameters; PatchShuffleSL freezes the edge" in sentence


def test_an_edge_that_shuffles_otherwise_is_refused() -> None:
    for edge in (None, {"method": "batch", "kappa": 0.4}):
        assert "its lower segment does not shuffle as PatchShuffleSL" in refused(
            Toy(clients=2, edge=edge)
        )
    toy = Toy(clients=2, edge={"method": "batch", "kappa": 0.4})
    assert "does not shuffle as BatchShuffleSL" in refused(toy, BatchShuffleSL, kappa=0.75)


def test_labels_of_too_few_clients_cost_the_others_only() -> None:
    toy = Toy(clients=3, edge=EDGE)
    strategy, recording, _ = fit(toy, 1, labels=toy.labels()[:2])
    assert all(step.uploads.keys() == {0, 1} for step in recording.steps)
    assert strategy.rows[0]["clients_failed"] == 1


def test_labels_are_needed_and_averaging_is_refused() -> None:
    for kind in (PatchShuffleSL, BatchShuffleSL, SpectralShuffleSL):
        name = kind.__name__
        with pytest.raises(ValueError, match=f"{name} needs the clients' labels.*an int64 tensor"):
            kind(Toy().upper())
        with pytest.raises(ValueError, match=f"{name} has frozen edges: there is nothing to aggr"):
            kind(Toy().upper(), labels=[], aggregator=FedAvg())


def test_the_upper_segment_must_be_made_for_the_same_shuffle() -> None:
    split = split_shuffled_edge(method="spectral", image_size=16, depth=2, seed=0)
    SpectralShuffleSL(split.upper, labels=[])
    with pytest.raises(ValueError, match=r"needs an upper segment made for .*'spectral-pixels'"):
        SpectralShuffleSL(split.upper, labels=[], spectrum="pixels")
    pixels = split_shuffled_edge(method="spectral-pixels", image_size=16, depth=2, seed=0)
    SpectralShuffleSL(pixels.upper, labels=[], spectrum="pixels")
    with pytest.raises(ValueError, match="spectrum is 'map'; it must be one of embedding, pix"):
        SpectralShuffleSL(split.upper, labels=[], spectrum="map")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"PatchShuffleSL needs an upper segment made for .*'patch'"
    ):
        PatchShuffleSL(split.upper, labels=[])
    half = split_shuffled_edge(method="batch", kappa=0.5, image_size=16, depth=2, seed=0)
    BatchShuffleSL(half.upper, labels=[], kappa=0.5)
    with pytest.raises(ValueError, match=r"this one is for .*0\.5"):
        BatchShuffleSL(half.upper, labels=[], kappa=0.4)


def test_an_edge_that_embeds_otherwise_is_refused() -> None:
    """Both sides name the embedding; the strategy asks for the one of its upper segment."""
    small: dict[str, Any] = {"image_size": 16, "depth": 2, "embed_dim": 24, "num_heads": 3}
    data = Examples(torch.randn(8, 1, 16, 16), torch.arange(8) % 3)
    tokens = split_shuffled_edge(method="patch", embedding="tokens-to-token", seed=0, **small)
    plain = split_shuffled_edge(method="patch", seed=0, **small)
    for upper, lower in ((tokens.upper, plain.lower), (plain.upper, tokens.lower)):
        strategy = PatchShuffleSL(upper, labels=[data.labels], device="cpu", min_nodes=1)
        assert strategy.edge == getattr(upper, "edge", None)
        with pytest.raises(LinkError, match="does not shuffle as PatchShuffleSL asks"):
            strategy.fit([SplitClient(lower, data, batch_size=4, device="cpu")], 1)
    with pytest.raises(ValueError, match=r"made for .*'batch'.*, this one is for .*to-token"):
        BatchShuffleSL(tokens.upper, labels=[], kappa=0.4)


@pytest.mark.parametrize(
    ("kind", "method", "kappa", "embedding"),
    [
        (PatchShuffleSL, "patch", 1.0, "patch"),
        (PatchShuffleSL, "patch", 1.0, "tokens-to-token"),
        (BatchShuffleSL, "batch", 0.4, "patch"),
        (BatchShuffleSL, "batch", 0.4, "tokens-to-token"),
        (SpectralShuffleSL, "spectral", 1.0, "patch"),
    ],
)
def test_a_real_edge_trains_the_upper_segment(
    kind: Any, method: Any, kappa: float, embedding: Any
) -> None:
    torch.manual_seed(0)
    data = Examples(torch.randn(8, 1, 16, 16), torch.arange(8) % 3)
    lower, upper = split_shuffled_edge(
        method=method, kappa=kappa, image_size=16, depth=2, embed_dim=24, num_heads=3,
        num_classes=3, seed=0, embedding=embedding,
    )  # fmt: skip
    options = {} if method != "batch" else {"kappa": kappa}
    strategy = kind(upper, labels=[data.labels] * 2, device="cpu", **options)
    before = {name: t.clone() for name, t in upper.state_dict().items()}
    edge = {name: t.clone() for name, t in lower.state_dict().items()}
    clients = [SplitClient(lower, data, batch_size=4, device="cpu") for _ in range(2)]
    strategy.fit(clients, 1, initial_arrays=to_arrays(lower.state_dict()))
    assert all(torch.equal(edge[name], t) for name, t in lower.state_dict().items())
    moved = [name for name, p in upper.named_parameters() if not torch.equal(before[name], p)]
    assert len(moved) > 10
