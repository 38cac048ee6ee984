"""Metrics count what crosses the cut: against bytes computed by hand, and by a recording."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from flwr_splitmix.events import Exchange, StepDone
from flwr_splitmix.links.link import tensor_bytes
from flwr_splitmix.mixers import PatchShare
from flwr_splitmix.observers import Metrics, Observer, progress_line
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import PSL, CutMixSL
from flwr_splitmix.testing.toy import Toy, sgd

TOY = Toy(clients=4)
B, N, D, STEPS, WIDTH = 4, 6, 3, 3, 8  # float64
LABELS = B * 8


class Recording(Observer):
    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.steps: list[Any] = []

    def on_exchange(self, event: Exchange) -> None:
        self.exchanges.append(event)

    def on_step(self, event: StepDone) -> None:
        self.steps.append(event)


def run(kind: Any, rounds: int = 1, toy: Toy = TOY, **options: Any) -> tuple[Metrics, Recording]:
    recording = Recording()
    strategy = kind(
        toy.upper(), optimizer=sgd(0.1), schedule=constant, device="cpu", observers=[recording],
        **options,
    )  # fmt: skip
    strategy.fit(toy.make_clients(sgd(0.1)), rounds)
    return strategy.records.metrics, recording


def test_without_mixing_all_smashed_data_and_their_gradients_cross() -> None:
    rows = run(PSL, 2)[0].rows
    whole = TOY.clients * STEPS * B * N * D * WIDTH
    for row in rows:
        assert row["uplink_bytes"] == whole + TOY.clients * STEPS * LABELS
        assert row["downlink_bytes"] == whole
        assert row["uplink_bytes_psl"] == row["uplink_bytes"]


def test_masks_halve_the_uplink() -> None:
    """A group of k sends one client's smashed data: 1/k of PSL's."""
    (row,) = run(CutMixSL)[0].rows
    groups = STEPS * 2 * B * N * D * WIDTH
    assert row["uplink_bytes"] == groups + TOY.clients * STEPS * LABELS
    assert row["downlink_bytes"] == groups
    assert row["uplink_bytes_psl"] == 2 * groups + TOY.clients * STEPS * LABELS


def test_broadcast_sends_every_member_the_whole_gradient() -> None:
    (row,) = run(CutMixSL, gradient="broadcast")[0].rows
    assert row["downlink_bytes"] == TOY.clients * STEPS * B * N * D * WIDTH


def test_an_upload_holds_the_kept_patches_and_the_labels_and_nothing_else() -> None:
    metrics, recording = run(CutMixSL, toy=Toy(clients=4, prefix=1))
    up = [e for e in recording.exchanges if e.direction == "up" and e.payload]
    assert len(up) == TOY.clients * STEPS
    plans = [step.plan for step in recording.steps for _ in range(TOY.clients)]
    for event, plan in zip(up, plans, strict=True):
        assert event.payload.keys() == {"smashed", "labels"}
        (share,) = plan.shares(event.client)
        assert isinstance(share, PatchShare)
        (smashed,) = event.payload["smashed"]
        assert tuple(smashed.shape) == (B, 1 + share.stop - share.start, D)
    assert metrics.rows[0]["uplink_bytes"] == sum(tensor_bytes(e.payload) for e in up)


def test_evaluation_is_not_among_the_bytes() -> None:
    toy = Toy(clients=4, tests=8)
    (with_it,) = run(PSL, toy=toy, evaluation="federated")[0].rows
    (without,) = run(PSL, toy=toy)[0].rows
    for column in ("uplink_bytes", "downlink_bytes", "uplink_bytes_psl", "loss"):
        assert with_it[column] == without[column]


def test_the_loss_of_a_round_is_the_mean_of_its_steps() -> None:
    metrics, recording = run(PSL, 2)
    for row in metrics.rows:
        losses = [float(s.result.loss) for s in recording.steps if s.server_round == row["round"]]
        assert len(losses) == row["steps"] == STEPS
        assert row["loss"] == pytest.approx(sum(losses) / STEPS)


def test_bytes_are_those_of_all_tensors_in_a_payload() -> None:
    double, byte = Tensor(3).double(), Tensor(2, 2).byte()
    assert tensor_bytes({"a": [double, None, {"b": (byte, double)}], "c": 5, "d": "x"}) == 52


def test_the_progress_line_says_what_was_measured() -> None:
    row = {
        "round": 2, "accuracy": 0.5, "accuracy_spread": 0.25, "accuracy_kind": "federated",
        "loss": 1.5, "steps_per_second": 2.0, "uplink_bytes": 2_500_000, "downlink_bytes": 100_000,
        "clients_failed": 1, "clients_alive": 9,
    }  # fmt: skip
    assert progress_line(row, 3, 61.0) == (
        "round 2/3 | top-1 0.5000 ± 0.2500 (federated) | loss 1.5000 | 2.00 steps/s | "
        "up 2.5 MB, down 100.0 kB | 9 clients, 1 failed | 1 min 01 s left"
    )
