"""DP-SGD on head and tail: its noise, its epsilon against opacus' own accountant, its refusals."""

from __future__ import annotations

import math
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from opacus.accountants import RDPAccountant
from torch import nn

from flwr_splitmix.clients import ClientError, UShapeClient
from flwr_splitmix.data.examples import fetch
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.events import StepDone
from flwr_splitmix.hiding import DPSGD, DPForward
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy.events import OUTSIDE_IN_U_SHAPE, UNBOUNDED
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from flwr_splitmix.testing.laws import check_ushape_equals_whole, sgd
from flwr_splitmix.testing.toy_texts import ToyTail
from tests.hiding.dp_sgd import ORDER, QUIET, TOY, step
from tests.privacy.gaussian import exact_epsilon


def test_with_a_clip_that_cuts_nothing_split_equals_whole() -> None:
    # Noise that repeats is drawn from the generator that dropout is drawn from.

    toy = replace(TOY, hiding=lambda: DPSGD(noise_multiplier=QUIET, clip_norm=1e6), clients=2)
    check_ushape_equals_whole(USHAPE_STRATEGIES["DPSGDSL"], toy)


@pytest.mark.fresh_secrets
def test_the_noise_is_as_wide_as_it_is_said_and_nobody_can_repeat_it() -> None:
    toy = replace(TOY, width=40, hiding=lambda: DPSGD(noise_multiplier=2.0, clip_norm=0.5))
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    batch = MaskedBatch(
        torch.tensor([[2, 3]] * 4), torch.ones(4, 2).long(), torch.tensor([[2, 3]] * 4)
    )
    gradients = []
    for _ in range(2):
        torch.manual_seed(0)
        gradients.append(step(client, batch, toy.server())["head.words.weight"])
    # Rows of words that are in no text hold noise alone: 2.0 x 0.5, over 4 texts.
    rest = torch.stack(gradients)[:, 5:]
    assert float(rest.std()) == pytest.approx(0.25, rel=0.1)
    assert not torch.equal(*gradients)


def test_epsilon_is_opacus_and_beside_it_that_of_the_batches_there_are() -> None:
    """12 texts in batches of 4, two rounds of 6 steps: four epochs."""
    toy = replace(TOY, hiding=lambda: DPSGD(noise_multiplier=1.3), dropout=0.3)
    strategy = USHAPE_STRATEGIES["DPSGDSL"](toy.server(), device="cpu", steps_per_round=6)
    (client,) = toy.clients_for(strategy, sgd())
    strategy.fit([client], 2)
    theirs = RDPAccountant()
    for _ in range(12):
        theirs.step(noise_multiplier=1.3, sample_rate=4 / 12)
    hiding: Any = client.hiding
    exact = exact_epsilon(1e-5, math.sqrt(4) * 2 / 1.3)
    assert hiding.metrics() == {
        "epsilon": pytest.approx(exact, rel=1e-9),
        "epsilon-if-poisson": pytest.approx(theirs.get_epsilon(1e-5), rel=1e-12),
    }
    row = strategy.rows[-1]
    assert row["train_epsilon"] == pytest.approx(exact)
    assert row["train_epsilon_if_poisson"] < exact
    statement = str(hiding.statement())
    assert "messages to the trunk, which carry inputs without noise" in statement
    assert client.epsilon is None  # what leaves in each step has none


def test_where_the_tail_alone_learns_neither_gradients_nor_losses_are_outside() -> None:
    """Nothing but messages and lengths leaves the client then."""
    toy = replace(TOY, hiding=lambda: DPSGD(noise_multiplier=1.3))
    strategy = USHAPE_STRATEGIES["DPSGDSL"](toy.server(), device="cpu", steps_per_round=2)
    (client,) = toy.clients_for(strategy, learns="tail")
    strategy.fit([client], 1)
    hiding: Any = client.hiding
    statement = hiding.statement()
    assert set(statement.outside) == {OUTSIDE_IN_U_SHAPE[c] for c in ("messages", "lengths")}


@pytest.mark.parametrize(("kind", "covered"), [("federated", False), ("benchmark", True)])
def test_scores_of_its_own_test_texts_are_outside_and_those_of_public_ones_are_not(
    kind: Any, covered: bool
) -> None:
    """Those tell no more than the weights; a test text's label is in no number."""
    toy = replace(TOY, hiding=lambda: DPSGD(noise_multiplier=1.3), tests=4)
    strategy = USHAPE_STRATEGIES["DPSGDSL"](
        toy.server(), device="cpu", steps_per_round=2, evaluation=kind
    )
    (client,) = toy.clients_for(strategy, learns="tail", benchmark_data=toy.texts(99, 4))
    strategy.fit([client], 1)
    hiding: Any = client.hiding
    assert (OUTSIDE_IN_U_SHAPE["losses"] not in hiding.statement().outside) == covered


def test_only_its_own_hooks_are_silent() -> None:
    """Torch's warning of hooks still reaches the rest of the process."""
    script = (
        "import warnings\n"
        "from flwr_splitmix.hiding import DPSGD\n"
        "from flwr_splitmix.strategies import USHAPE_STRATEGIES\n"
        "from flwr_splitmix.testing.toy_texts import TextToy\n"
        "toy = TextToy(clients=2, hiding=DPSGD)\n"
        "strategy = USHAPE_STRATEGIES['DPSGDSL'](toy.server(), device='cpu', steps_per_round=2)\n"
        "strategy.fit(toy.clients_for(strategy), 1)\n"
        "warnings.warn('Full backward hook is firing')\n"
    )
    command = [sys.executable, "-W", "error:Full backward hook", "-c", script]
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "round 1/1" in process.stderr
    assert process.stderr.endswith("UserWarning: Full backward hook is firing\n")


def test_a_text_that_is_in_a_batch_several_times_costs_the_square() -> None:
    """Its copies add up to one vector of as many times the norm."""
    toy = replace(TOY, hiding=lambda: DPSGD(noise_multiplier=1.3))
    (client,) = toy.clients_for(batch_size=TOY.examples + 1)
    client.attach(ORDER, None)
    client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    drawn = client.batches.indices
    most = int(np.bincount(drawn).max())
    assert most > 1
    batch = MaskedBatch.of(fetch(client.batches.data, drawn), client.device)
    step(client, batch, toy.server(), drawn)
    exact = exact_epsilon(1e-5, most * 2 / 1.3)
    assert client.hiding.metrics()["epsilon"] == pytest.approx(exact, rel=1e-9)


@pytest.mark.fresh_secrets
def test_what_an_earlier_attempt_owes_is_told_before_the_first_step() -> None:
    """The metrics have the epsilon of 10 that the statement has."""
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for(repeatable_secrets=False)
    client.attach(replace(ORDER, attempt=1, earlier=(3,)), None)
    client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    hiding: Any = client.hiding
    owed = exact_epsilon(1e-5, 2.0)
    assert hiding.metrics() == {"epsilon": pytest.approx(owed, rel=1e-9)}
    assert hiding.statement().epsilon == pytest.approx(owed, rel=1e-9)


@pytest.mark.parametrize("multiplier", [3e-7, 1e-9, QUIET, 1e-200])
def test_noise_that_a_batchs_sum_swallows_leaves_no_epsilon(multiplier: float) -> None:
    """In float32 it leaves numbers as large as 4 clipped gradients unchanged."""
    (client,) = replace(TOY, hiding=lambda: DPSGD(noise_multiplier=multiplier)).clients_for()
    client.attach(ORDER, None)
    batch = MaskedBatch.of(fetch(client.batches.data, np.arange(4)), client.device)
    step(client, batch, TOY.server())
    hiding: Any = client.hiding
    metrics = hiding.metrics()
    assert metrics["epsilon"] == hiding.statement().epsilon == math.inf
    assert hiding.statement().unbounded_because == (UNBOUNDED["resolution"],)
    assert math.isinf(metrics["epsilon-if-poisson"]) is (multiplier < 2**-23)


def test_a_single_gradient_may_hide_where_a_sum_does_not() -> None:
    hiding = DPSGD(noise_multiplier=3e-7, clip_norm=1e6)
    assert hiding.noise_of(1).shift == pytest.approx(2 / 3e-7)
    assert hiding.noise_of(4).shift == math.inf


def test_a_step_whose_gradient_is_lost_is_neither_taken_nor_charged() -> None:
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    for number in range(2):
        client.run("encode", {"number": number, "progress": 0.0, "gradient": None})
    hiding: Any = client.hiding
    assert hiding.metrics() == {"epsilon": 0.0}
    words: Any = next(client.head.children())
    assert len(words.activations) == 1  # those of the step in progress


class Gated(ToyTail):
    """Has a layer that runs only if a text asks for it, by its first token, and one never used."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 0.0, None)
        self.gated = nn.Linear(width, width)
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.open = False

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.open:
            hidden = hidden + self.gated(hidden)
        return super().forward(hidden, mask)


@pytest.mark.fresh_secrets
@pytest.mark.parametrize("opened", [False, True])
def test_a_layer_that_no_text_of_the_batch_has_called_gets_the_same_noise(opened: bool) -> None:
    """Without it, a single text decides whether the layer's weights change at all."""
    toy = replace(TOY, width=40)
    tail = Gated(40)
    tail.open = opened
    hiding = DPSGD(noise_multiplier=2.0, clip_norm=1e-6)
    client = UShapeClient(
        toy.head(), tail.double(), toy.texts(5, 8), device="cpu", batch_size=4, hiding=hiding
    )
    client.attach(ORDER, None)
    batch = MaskedBatch.of(fetch(client.batches.data, np.arange(4)), client.device)
    gradients = step(client, batch, toy.server())
    assert float(gradients["tail.gated.weight"].std()) == pytest.approx(0.5e-6, rel=0.15)
    assert gradients["tail.unused.weight"].any()
    assert "tail.frozen.weight" not in gradients
    assert hiding.metrics()["epsilon"] > 0


@pytest.mark.fresh_secrets
def test_a_step_in_which_nothing_is_learned_is_noise_and_is_charged() -> None:
    toy = replace(TOY, hiding=lambda: DPSGD(noise_multiplier=1.3))
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    hiding: Any = client.hiding
    for parameter in client.tail.parameters():
        parameter.requires_grad_(False)
    batch = MaskedBatch.of(fetch(client.batches.data, np.arange(4)), client.device)
    client.segments.train()
    hiding.charge("train", np.arange(4))
    hiding.obfuscate(batch)  # and no gradient comes back
    hiding.before_update()
    assert all(p.grad is not None and p.grad.any() for p in client.head.parameters())
    assert hiding.metrics()["epsilon"] == pytest.approx(exact_epsilon(1e-5, 2 / 1.3), rel=1e-9)


class NormedTail(ToyTail):
    """Normalises the batch with a layer that has no weights, so that Opacus does not refuse it."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 0.0, None)
        self.norm = nn.BatchNorm1d(width, affine=False, track_running_stats=False)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(hidden.mT).mT, mask)


def test_a_tail_that_mixes_the_texts_of_a_batch_has_no_epsilon() -> None:
    tail = NormedTail(TOY.width).double()
    client = UShapeClient(
        TOY.head(), tail, TOY.texts(0, 8), batch_size=4, device="cpu", hiding=DPSGD()
    )
    with pytest.raises(ClientError, match=r"the tail has BatchNorm, .* no epsilon: take a tail"):
        client.attach(ORDER, None)
    other = UShapeClient(
        TOY.head(), tail, TOY.texts(0, 8), batch_size=4, device="cpu", hiding=DPForward()
    )
    assert other.attach(ORDER, None)["batch-size"] == 4  # its epsilon is the messages'


def test_a_text_whose_gradient_overflows_does_not_show_through_the_noise() -> None:
    """As NaN it would turn the whole sum to NaN, at any noise: a server could choose the text."""
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    batch = MaskedBatch.of(client.batches.next_batch(0, 0), client.device)

    class Overflows(torch.autograd.Function):
        """Whose derivative at the second text is close to the largest number."""

        @staticmethod
        def forward(ctx: Any, hidden: torch.Tensor) -> torch.Tensor:
            return hidden.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            huge = torch.zeros_like(gradients[0])
            huge[1] = 1.7e308
            return huge

    learned = step(client, batch, lambda hidden, mask: Overflows.apply(hidden))
    assert learned.keys() == client.weights().keys()
    assert all(gradient.isfinite().all() for gradient in learned.values())


def test_head_and_tail_can_be_used_elsewhere_after_a_round() -> None:
    """Hooks that stay on the user's modules would refuse another batch of the same head."""
    toy = replace(TOY, hiding=DPSGD, task="classification", tests=6)
    strategy = USHAPE_STRATEGIES["DPSGDSL"](toy.server(), device="cpu", evaluation="federated")
    (client,) = toy.clients_for(strategy)
    attributes = [vars(layer).keys() for layer in client.segments.modules()]
    strategy.fit([client], 2)
    for layer in client.segments.modules():
        for kind in ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks"):
            assert not getattr(layer, kind), kind
    assert [vars(layer).keys() for layer in client.segments.modules()] == attributes
    assert not any(vars(weights) for weights in client.segments.parameters())
    for head in (client.head, deepcopy(client.head)):
        head(torch.tensor([[2, 3]] * 7), torch.ones(7, 2)).sum().backward()
    before = client.hiding.metrics()["epsilon"]
    strategy.fit([client], 1)
    assert client.hiding.metrics()["epsilon"] > before


def test_head_and_tail_can_be_used_elsewhere_after_an_interruption() -> None:
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for()
    strategy = USHAPE_STRATEGIES["DPSGDSL"](toy.server(), device="cpu", observers=[Interrupting()])
    with pytest.raises(KeyboardInterrupt):
        strategy.fit([client], 1)
    for layer in client.segments.modules():
        assert not [*layer._forward_pre_hooks, *layer._forward_hooks]
    deepcopy(client.head)(torch.tensor([[2, 3]] * 7), torch.ones(7, 2)).sum().backward()


class Interrupting(Observer):
    """An observer that is interrupted in the first step."""

    def on_step(self, event: StepDone) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"noise_multiplier": 0.0}, r"noise_multiplier is 0\.0; it must be a number above 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier is nan; it must be a number above 0"),
        ({"clip_norm": -1.0}, r"clip_norm is -1\.0; it must be a number above 0"),
        ({"clip_norm": math.inf}, "clip_norm is inf; it must be a number above 0"),
        ({"noise_multiplier": 1e300}, r"noise_multiplier \* clip_norm is 1e\+300, but noise"),
        ({"delta": 1.0}, r"delta is 1\.0; it must lie strictly between 0 and 1"),
    ],
    ids=str,
)
def test_an_option_out_of_range_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DPSGD(**options)


def test_making_it_adds_no_handler_of_opacus_to_the_root_logger() -> None:
    """It would print Flower's lines twice. Asked of a process that has not imported Opacus yet."""
    script = (
        "import logging, sys; from flwr_splitmix.hiding import DPSGD; DPSGD(); "
        "assert 'opacus' in sys.modules; print(logging.getLogger().handlers)"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert output == "[]\n"
