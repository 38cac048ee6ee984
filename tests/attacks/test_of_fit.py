"""What leaks of a method of somebody's own, that `fit` trained in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor, nn

from flwr_splitmix import SplitClient
from flwr_splitmix.attacks import Attack, Guess, Pictures, Recorder, View
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.of_fit import attacked_fit
from flwr_splitmix.attacks.running.leak import measure_leak
from flwr_splitmix.attacks.simulation import passes
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.labels import TargetLoss
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.testing.toy import Toy, sgd
from tests.attacks.own_signs import KnownSignShare, SignMix, SignShare

IMAGES = load_images("fashion-mnist-small")


class Lower(nn.Conv2d):
    """A patch embedding with no geometry of its own."""

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            super().__init__(1, 64, 8, stride=8)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).flatten(2).mT


def fitted(
    kind: type[SignShare],
    recorder: Recorder,
    *,
    observed: bool = True,
    averaged: bool = True,
    lr: float = 0.0,
    loss: TargetLoss | None = None,
    initial_arrays: ArrayRecord | None = None,
) -> tuple[SplitStrategy, Result, list[SplitClient]]:
    clients = [
        SplitClient(
            Lower(0),
            client_split(IMAGES, index, 60)[0],
            batch_size=25,
            device="cpu",
            optimizer=sgd(lr),  # 0: recorded steps have the weights that the attacker has
            shares=SignMix.shares,
        )
        for index in range(4)
    ]
    strategy = SplitStrategy(
        nn.Sequential(nn.Flatten(), nn.Linear(16 * 64, 10)),
        mixer=SignMix(kind),
        num_classes=10,
        loss=loss,
        aggregator=FedAvg() if averaged else None,
        device="cpu",
        observers=[recorder] if observed else [],
    )
    return strategy, strategy.fit(clients, 1, initial_arrays=initial_arrays), clients


def test_an_own_method_is_attacked_as_its_share_says(caplog: pytest.LogCaptureFixture) -> None:
    errors, floors, warned = [], [], []
    for kind in (SignShare, KnownSignShare):
        recorder = Recorder()
        system = attacked_fit(*fitted(kind, recorder), recorder, IMAGES.test, fresh_lower=Lower)
        assert system.knowledge.k == 2
        assert (system.knowledge.geometry.patches, system.knowledge.geometry.width) == (16, 64)
        caplog.clear()
        main = measure_leak(system, "linear", victims=50, budget=Budget("smoke"))[0]
        warned.append("uploads of SignShare as they were sent" in caplog.text)
        errors.append(main.value)
        floors.append(main.floor)
    assert errors[0] > floors[0] / 2
    assert errors[1] < 1e-3 < floors[1]
    assert warned[0]


def test_the_attacker_has_the_average_and_no_clients_own_weights() -> None:
    recorder = Recorder()
    strategy, result, clients = fitted(SignShare, recorder, lr=0.1)
    system = attacked_fit(strategy, result, clients, recorder, IMAGES.test, fresh_lower=Lower)
    lower = system.knowledge.lowers
    assert isinstance(lower, Lower)
    client_weights = [client.segment.state_dict()["weight"] for client in clients]
    torch.testing.assert_close(lower.weight.detach(), torch.stack(client_weights).mean(0))
    assert not torch.allclose(lower.weight, client_weights[0], atol=1e-5)


def test_the_attacker_knows_the_loss() -> None:
    weighted = nn.CrossEntropyLoss(torch.arange(1.0, 11.0), reduction="none")
    recorder = Recorder()
    strategy, result, clients = fitted(SignShare, recorder, loss=weighted)
    with_loss = attacked_fit(
        strategy, result, clients, recorder, IMAGES.test, fresh_lower=Lower
    ).knowledge
    images, labels = torch.rand(100, *with_loss.image_shape), torch.arange(100) % 10
    losses = []
    for knowledge in (with_loss, replace(with_loss, loss=None)):
        generator = np.random.default_rng(0)
        step, _, _ = next(
            passes(
                knowledge, images, labels, generator,
                lowers=with_loss.lowers, batch_size=25, gradients=True,
            )
        )  # fmt: skip
        assert step.loss is not None
        losses.append(step.loss)
    weighted_losses, default = losses
    # Targets are mixtures of two classes, so an example's weight lies between theirs.
    assert torch.all((weighted_losses / default > 0.99) & (weighted_losses / default < 10.01))
    assert float((weighted_losses / default).std()) > 0.5


def test_what_cannot_be_attacked_is_said() -> None:
    recorder = Recorder()
    strategy, result, clients = fitted(SignShare, recorder, observed=False)
    for victims, error, message in (
        (clients, ValueError, r"give it to the strategy before fit, observers=\[recorder\]"),
        ([], ValueError, "there are no clients to attack"),
        (Toy(clients=1).make_clients(), TypeError, "client 0 has .* need an ImageDataset, such"),
    ):
        with pytest.raises(error, match=message):
            attacked_fit(strategy, result, victims, recorder, IMAGES.test, fresh_lower=Lower)


def test_a_server_that_averages_nothing_has_the_first_weights_that_it_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder()
    parts = fitted(KnownSignShare, recorder, averaged=False, lr=1e-6)
    system = attacked_fit(*parts, recorder, IMAGES.test, fresh_lower=Lower)
    first = system.case("server", trained=1, held_out=1).view.knowledge.lowers
    assert isinstance(first, Lower)
    assert torch.equal(first.weight, Lower(0).weight)
    assert not torch.equal(first.weight, parts[2][0].segment.state_dict()["weight"].cpu())
    main, *_ = measure_leak(system, "linear", victims=50, budget=Budget("smoke"))
    assert main.value < 1e-3 < main.floor
    assert "lower segments with the run's first weights, which the server sent" in caplog.text


def test_first_weights_are_those_of_clients_whom_they_fit() -> None:
    """A client with other layers than most takes no part, and may come first."""
    recorder = Recorder()
    parts = fitted(KnownSignShare, recorder, averaged=False)
    parts[2][0].segment.extra = nn.Linear(1, 1)
    system = attacked_fit(*parts, recorder, IMAGES.test, fresh_lower=Lower)
    first = system.case("server", trained=1, held_out=1).view.knowledge.lowers
    assert isinstance(first, Lower)
    assert first.state_dict().keys() == Lower(0).state_dict().keys()


def test_what_the_adversary_lacks_is_given_by_assume() -> None:
    """The server has sent no weights, so it has none."""
    recorder = Recorder()
    parts = fitted(KnownSignShare, recorder, averaged=False, initial_arrays=ArrayRecord())
    assert recorder.first is None
    system = attacked_fit(*parts, recorder, IMAGES.test, fresh_lower=Lower)
    spent = Budget("smoke")
    with pytest.raises(NotApplicable, match=r"in addition: assume=\['lower'\]"):
        measure_leak(system, "linear", victims=50, budget=spent)
    main, *_ = measure_leak(system, "linear", assume=["lower"], victims=50, budget=spent)
    assert main.value < main.floor


class MeanImage(Attack):
    """Guesses the mean of public images."""

    name = "mean-image"
    goal = "images"
    needs = frozenset({"smashed data", "public data"})

    def learn(self, view: View, public: Pictures | None) -> None:
        assert public is not None
        self.mean = public.fitted(view.knowledge.image_shape).images.mean(0)

    def run(self, view: View) -> Guess:
        rows = [
            (i, row) for i, each in enumerate(view.releases) for row in range(len(each.smashed))
        ]
        return Guess(self.mean.expand(len(rows), *self.mean.shape), torch.ones(len(rows)), rows)


class Nameless(Attack):
    """An attack that says neither its name nor its goal."""


class Misspelled(MeanImage):
    """Its goal must not be taken for "membership"."""

    goal = "image"  # type: ignore[assignment]


class Needy(MeanImage):
    """Needs what no view has."""

    needs = frozenset({"smashed"})


def test_an_own_attack_is_measured_like_those_with_names() -> None:
    recorder = Recorder()
    system = attacked_fit(*fitted(SignShare, recorder), recorder, IMAGES.test, fresh_lower=Lower)
    spent = Budget("smoke")
    main, *_ = measure_leak(system, MeanImage, victims=50, budget=spent)
    assert main.metric == "MSE"
    assert main.floor < main.value < 0.1  # the floor is the mean image of each row's class
    assert not main.beats_floor
    wrong: Any
    for wrong, message in (
        (MeanImage(), "attack is <.*MeanImage object .*name of an attack on images, or a subclass"),
        (Recorder, "attack is <class .*Recorder'>; it must be the name"),
        (Nameless, "the attack Nameless lacks name, goal, run"),
        (Misspelled, "Misspelled has the goal 'image'; it must be one of images, order, owners"),
        (Needy, "Needy has unknown needs 'smashed'; available: smashed data, lower, "),
    ):
        with pytest.raises(TypeError, match=message):
            measure_leak(system, wrong, victims=50, budget=spent)
