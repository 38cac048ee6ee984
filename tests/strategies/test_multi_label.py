"""Every method of the L shape on examples of several labels: laws, scores, guards."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset

from flwr_splitmix import adamw
from flwr_splitmix.clients import SplitClient, exchange
from flwr_splitmix.data.examples import Example
from flwr_splitmix.links import LinkError
from flwr_splitmix.methods import BY_NAME
from flwr_splitmix.mixers import SmashedShape
from flwr_splitmix.mixers.noisy import NO_LABEL_NOISE
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import PSL, SFL, CutMixSL, DPCutMixSL, central_evaluation
from flwr_splitmix.testing.laws import check_split_equals_whole, check_wire
from flwr_splitmix.testing.toy import Toy
from flwr_splitmix.testing.whole import MakeStrategy
from tests.laws.makers import NAMES, maker, toy_for

TOY = Toy(clients=4, multi_label=True, tests=6)


def make_several(name: str) -> MakeStrategy:
    """Return a method's maker for examples of several labels: without noise on labels."""
    options: dict[str, Any] = {}
    needs = BY_NAME[name].needs if name in BY_NAME else ()
    if "noise" in needs:
        options["noise"] = GaussianNoise(sigma_s=0.1, sigma_y=0.0, clip_norm=1.5)
    if "labels" in needs:
        options["labels"] = Toy(clients=12, multi_label=True).labels()
    return partial(maker(name), multi_label=True, **options)


@pytest.mark.parametrize("name", NAMES)
def test_laws_1_and_6_split_equals_whole_and_only_what_may_crosses(name: str) -> None:
    toy = toy_for(name, multi_label=True)
    check_split_equals_whole(make_several(name), toy, server_update="sequential")
    check_wire(make_several(name), toy)


def test_federated_and_central_evaluation_agree_and_have_matthews_correlation() -> None:
    options: dict[str, Any] = {"optimizer": adamw(0.02), "device": "cpu", "multi_label": True}
    scores = []
    for central in (False, True):
        strategy = SFL(
            TOY.upper(),
            evaluation="none" if central else "federated",
            steps_per_round=20,
            **options,
        )
        tests = [TOY.test_data(client) for client in range(TOY.clients)]
        parts = [part for part in tests if part is not None]
        together: ConcatDataset[Example] = ConcatDataset(parts)
        evaluate_fn = central_evaluation(strategy.upper, TOY.lower(), together) if central else None
        strategy.fit(TOY.make_clients(adamw(0.02)), 3, evaluate_fn=evaluate_fn)
        row = strategy.rows[-1]
        assert row["uplink_bytes_psl"] == row["uplink_bytes"]  # a label for each class, unmixed
        scores.append((row["accuracy"], row["eval_loss"], row["eval_matthews"]))
    assert scores[0] == pytest.approx(scores[1])
    assert scores[0][0] > 0.65  # a guess has 0.5
    assert scores[0][2] > 0.3


def test_noise_on_labels_is_refused_on_both_sides() -> None:
    noise = GaussianNoise(sigma_s=0.1, sigma_y=0.1)
    with pytest.raises(ValueError, match=r"several labels.*use sigma-y 0.0"):
        PSL(TOY.upper(), multi_label=True, noise=noise)
    # A server may still ask for it.
    strategy = DPCutMixSL(TOY.upper(), noise=noise, device="cpu")
    shape = SmashedShape(TOY.batch, TOY.patches, TOY.width, classes=TOY.classes)
    plan = strategy.mixer.plan(range(4), shape, np.random.default_rng(0))
    (share,) = plan.shares(0)
    assert share is not None
    with pytest.raises(ValueError, match=r"several labels.*use sigma-y 0.0"):
        share.upload_labels(TOY.data(0).labels[: TOY.batch], torch.float64)
    assert NO_LABEL_NOISE.endswith("use sigma-y 0.0 with them")


class Twice(SplitClient):
    """Sends each label twice."""

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        reply = super().step(**arguments)
        if reply:
            reply["labels"] = reply["labels"] * 2
        return reply


@pytest.mark.parametrize(
    ("toy", "kind", "multi_label", "sentence"),
    [
        (TOY, Twice, True, r"labels lie in 0\.\.2, expected 0\.\.1"),
        (TOY, SplitClient, False, r"labels have shape \(4, 3\) of .*, expected \(4,\)"),
        (Toy(clients=4), SplitClient, True, r"labels have shape \(4,\) of .*, expected \(4, 3\)"),
    ],
)
def test_labels_of_the_other_kind_are_refused(
    toy: Toy, kind: type[SplitClient], multi_label: bool, sentence: str
) -> None:
    strategy = CutMixSL(toy.upper(), multi_label=multi_label, device="cpu")
    with pytest.raises(LinkError, match=sentence):
        strategy.fit(toy.make_clients(kind=kind), 1)


def test_the_servers_own_labels_are_checked() -> None:
    make = partial(maker("BatchShuffleSL"), multi_label=True)
    with pytest.raises(ValueError, match=r"labels of client 0 have shape \(12,\)"):
        make(toy_for("BatchShuffleSL").upper())
