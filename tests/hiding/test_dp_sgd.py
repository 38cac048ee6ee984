"""DP-SGD on head and tail: against gradients taken text by text, and opacus' own accountant."""

from __future__ import annotations

import math
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from torch import nn
from transformers import Gemma3TextConfig

from flwr_splitmix.clients import ClientError, Order, TextSet, UShapeClient
from flwr_splitmix.data.batches import fetch
from flwr_splitmix.data.texts.batch import TextBatch
from flwr_splitmix.hiding import DPSGD, DPForward, Hiding
from flwr_splitmix.hiding.text_gradients import TextGradients
from flwr_splitmix.segments.language import LanguageCut, cut_language_model
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from flwr_splitmix.testing.laws import check_ushape_equals_whole, sgd
from flwr_splitmix.testing.toy_texts import TextToy, ToyTail
from tests.privacy.gaussian import exact_epsilon
from tests.segments.language.tiny_models import ENCODERS, GROUPED, config_of, whole_model

ORDER = Order(0, 7, 1, 1)
TOY = TextToy(clients=1, dropout=0.0)
QUIET = 1e-20
"""A noise multiplier that leaves the clipped gradients as they are."""


def step(
    client: Any, batch: TextBatch, trunk: Any, records: np.ndarray | None = None
) -> dict[str, torch.Tensor]:
    """Do what a step does, without the link; returns what head and tail would learn by."""
    client.segments.train()
    client.ends.optimizer.zero_grad()
    client.hiding.charge("train", np.arange(len(batch.ids)) if records is None else records)
    sent = client.obfuscate(batch)
    leaf = sent.messages[0].detach().requires_grad_()
    outputs = trunk(leaf, batch.mask)
    client.loss(client.recover([outputs], sent), sent).backward()
    client.ends.backward(sent.messages, [leaf.grad])
    client.hiding.before_update()
    return {n: p.grad.clone() for n, p in client.segments.named_parameters() if p.grad is not None}


def one_by_one(client: Any, batch: TextBatch, trunk: Any, bound: float) -> dict[str, torch.Tensor]:
    """Return the mean of the texts' gradients, each taken by itself, and clipped."""
    names = dict(client.segments.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in names.items()}
    client.hiding._watched.disable_hooks()
    for i in range(len(batch.ids)):
        text = TextBatch(batch.ids[i : i + 1], batch.mask[i : i + 1], batch.labels[i : i + 1])
        sent = Hiding.obfuscate(client.hiding, text)
        loss = client.loss(trunk(sent.messages[0], text.mask), sent)
        own = torch.autograd.grad(loss, list(names.values()), allow_unused=True)
        gradients = {n: g for n, g in zip(names, own, strict=True) if g is not None}
        length = torch.stack([g.norm() for g in gradients.values()]).norm()
        for name, g in gradients.items():
            total[name] += g * (bound / (length + 1e-6)).clamp(max=1) / len(batch.ids)
    client.hiding._watched.enable_hooks()
    return total


@pytest.mark.parametrize("bound", [1e6, 0.3])
def test_each_texts_gradient_is_clipped_by_itself(bound: float) -> None:
    toy = replace(TOY, hiding=lambda: DPSGD(noise_multiplier=QUIET, clip_norm=bound))
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    trunk = toy.server()
    # Texts of two lengths, one of which has no token that carries a loss.
    ids = torch.tensor([[2, 3, 4, 5], [6, 7, 0, 0], [9, 9, 2, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
    labels = torch.where(mask == 1, ids, -100)
    labels[1] = -100
    batch = TextBatch(ids, mask, labels)
    expected = one_by_one(client, batch, trunk, bound)
    gradients = step(client, batch, trunk)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-8, rtol=1e-6)
    if bound < 1:
        norm = torch.stack([g.norm() for g in gradients.values()]).norm()
        assert float(norm) <= bound


def test_of_an_embedding_only_the_rows_of_the_batch_are_kept() -> None:
    toy = replace(TOY, hiding=lambda: DPSGD(noise_multiplier=QUIET, clip_norm=1e6))
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    ids = torch.tensor([[2, 3, 4, 2], [9, 3, 0, 0]])
    client.segments.train()
    sent = client.obfuscate(TextBatch(ids, torch.ones_like(ids), ids))
    (embedding,) = [m for m in client.head.modules() if isinstance(m, torch.nn.Embedding)]
    drawn = torch.randn_like(sent.messages[0])
    client.ends.backward(sent.messages, [drawn])
    weight: Any = embedding.weight
    assert weight.rows.tolist() == [0, 2, 3, 4, 9]
    assert weight.grad_sample.shape == (2, 5, embedding.embedding_dim)
    # One text does not touch the rows of the other's tokens; a token that it has twice counts so.
    touched = weight.grad_sample.abs().sum(2) > 0
    assert touched.tolist() == [[False, True, True, True, False], [True, False, True, False, True]]
    torch.testing.assert_close(weight.grad_sample.mean(0), weight.grad[weight.rows])
    client.hiding.before_update()
    assert not hasattr(weight, "rows")


@pytest.mark.parametrize(
    ("family", "task"),
    [(n, "generation") for n in ("qwen3", "gpt2", "gpt_neo", "gpt_neox", "phi", "mpt", "gptj")]
    + [(n, "classification") for n in ENCODERS if not n.startswith("deberta")],
)
def test_real_models_keep_texts_apart(
    family: str, task: Literal["generation", "classification"]
) -> None:
    """Tied embeddings, shared positions, norms without bias, layers unknown to opacus by name."""
    model = whole_model(config_of(family, task), task)
    head, trunk, tail = cut_language_model(model, LanguageCut(1, 1)).all_here()
    data = TextSet([torch.tensor([3, 4, 5])] * 4, [0] * 4)
    hiding = DPSGD(noise_multiplier=QUIET, clip_norm=0.5)
    client = UShapeClient(head, tail, data, hiding=hiding, device="cpu", batch_size=3)
    client.attach(ORDER, None)
    for module in (head, trunk, tail):
        part: Any
        for part in module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
            if hasattr(part, "attention_dropout"):
                part.attention_dropout = 0.0
    ids = torch.tensor([[2, 3, 4, 5], [6, 7, 1, 0], [9, 9, 2, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0]])
    labels = ids if task == "generation" else torch.tensor([0, 2, 1])
    batch = TextBatch(ids, mask, labels)
    expected = one_by_one(client, batch, trunk, 0.5)
    gradients = step(client, batch, trunk)
    assert gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
def test_a_layer_that_is_called_once_for_all_texts_is_refused(family: str) -> None:
    """Opacus took the gradient by DeBERTa's embeddings of distances for the first text's."""
    model = whole_model(config_of(family, "classification"), "classification")
    head, _, tail = cut_language_model(model, LanguageCut(1, 1)).all_here()
    data = TextSet([torch.tensor([3, 4, 5])] * 4, [0] * 4)
    client = UShapeClient(head, tail, data, hiding=DPSGD(), device="cpu", batch_size=3)
    client.attach(ORDER, None)
    client.segments.train()
    ids = torch.tensor([[2, 3], [6, 7], [9, 2]])
    with pytest.raises(
        ValueError, match=r"head\.stack\.layers\.0\.attention.* with 1 row for 3 texts"
    ):
        client.obfuscate(TextBatch(ids, torch.ones_like(ids), torch.tensor([0, 2, 1])))


@pytest.mark.parametrize(
    ("config", "layer"),
    [
        # Embeddings that are scaled by a buffer; positions that are no first argument.
        (Gemma3TextConfig(**GROUPED, head_dim=8), r"embed_tokens \(Gemma3TextScaled"),
        (config_of("opt"), r"embed_positions \(OPTLearned"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_a_layer_unknown_to_opacus_is_refused_before_a_text_is_sent(
    config: Any, layer: str
) -> None:
    model = whole_model(config)
    head, _, tail = cut_language_model(model, LanguageCut(1, 1)).all_here()
    data = TextSet([torch.tensor([3, 4, 5])] * 4, [torch.tensor([3, 4, 5])] * 4)
    client = UShapeClient(head, tail, data, hiding=DPSGD(), device="cpu", batch_size=3)
    with pytest.raises(ValueError, match=rf"head\.embedding\.{layer}.*lora-rank"):
        client.attach(ORDER, None)
    for weight in head.embedding.parameters():
        weight.requires_grad_(False)
    client.attach(ORDER, None)


def test_with_a_clip_that_cuts_nothing_split_equals_whole() -> None:
    # Noise that repeats is drawn from the generator that dropout is drawn from.

    toy = replace(TOY, hiding=lambda: DPSGD(noise_multiplier=QUIET, clip_norm=1e6), clients=2)
    check_ushape_equals_whole(USHAPE_STRATEGIES["DPSGDSL"], toy)


@pytest.mark.fresh_secrets
def test_the_noise_is_as_wide_as_it_is_said_and_nobody_can_repeat_it() -> None:
    toy = replace(TOY, width=40, hiding=lambda: DPSGD(noise_multiplier=2.0, clip_norm=0.5))
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    batch = TextBatch(
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
    row = strategy.recorder.metrics.rows[-1]
    assert row["train_epsilon"] == pytest.approx(exact)
    assert row["train_epsilon_if_poisson"] < exact
    said = str(hiding.statement())
    assert "messages to the trunk, which carry texts without noise" in said
    assert client.epsilon is None  # what leaves in each step has none


def test_a_text_that_is_in_a_batch_several_times_costs_the_square() -> None:
    """Its copies add up to one vector of as many times the norm; they used to cost as many."""
    toy = replace(TOY, hiding=lambda: DPSGD(noise_multiplier=1.3))
    (client,) = toy.clients_for(batch_size=TOY.examples + 1)
    client.attach(ORDER, None)
    client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    drawn = client.batches.indices
    most = int(np.bincount(drawn).max())
    assert most > 1
    batch = TextBatch.of(fetch(client.batches.data, drawn), client.device)
    step(client, batch, toy.server(), drawn)
    exact = exact_epsilon(1e-5, most * 2 / 1.3)
    assert client.hiding.metrics()["epsilon"] == pytest.approx(exact, rel=1e-9)


def test_a_step_whose_gradient_is_lost_is_neither_taken_nor_charged() -> None:
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    for number in range(2):
        client.run("encode", {"number": number, "progress": 0.0, "gradient": None})
    hiding: Any = client.hiding
    assert hiding.metrics() == {}
    words: Any = next(client.head.children())
    assert len(words.activations) == 1  # those of the step in progress


def test_a_layer_that_does_not_keep_texts_apart_is_named() -> None:
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    hiding: Any = client.hiding
    hiding._texts = 3
    hiding._gradients.trained()[0].grad_sample = torch.zeros(12, 23, 5)
    with pytest.raises(ValueError, match=r"weights of shape \(23, 5\) does not keep texts apart"):
        hiding.before_update()


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
    """One text turned the whole sum to NaN, at any noise: a server chose which text by its size."""
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    batch = TextBatch.of(client.batches.next_batch(0, 0), client.device)

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


def test_weights_without_a_gradient_for_each_text_are_not_trained_without_noise() -> None:
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    hiding: Any = client.hiding
    weights = hiding._gradients.trained()[0]
    weights.grad_sample, weights.grad = None, torch.ones_like(weights)
    with pytest.raises(ValueError, match=r"weights of shape \(23, 5\) are used outside of their"):
        hiding.before_update()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"noise_multiplier": 0.0}, r"noise_multiplier is 0\.0; it must be a number above 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier is nan; it must be a number above 0"),
        ({"clip_norm": -1.0}, r"clip_norm is -1\.0; it must be a number above 0"),
        ({"clip_norm": math.inf}, "clip_norm is inf; it must be a number above 0"),
        ({"delta": 1.0}, r"delta is 1\.0; it must lie strictly between 0 and 1"),
    ],
    ids=str,
)
def test_an_option_out_of_range_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DPSGD(**options)


class Twice(torch.nn.Module):
    """An embedding that is used twice, with and without a layer that is tied to it."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(9, 3)
        self.read = torch.nn.Linear(3, 9, bias=False)
        self.tied = tied
        if tied:
            self.read.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids) * 2
        logits: torch.Tensor = self.read(
            hidden if self.tied else hidden + self.embedding(ids.flip(1))
        )
        return logits


@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_in_several_uses_keeps_opacus_form(tied: bool) -> None:
    torch.manual_seed(0)
    whole = Twice(tied=tied)
    ids = torch.tensor([[2, 3, 4, 2], [8, 3, 0, 0]])
    each = []
    for kind in (GradSampleModule, TextGradients):
        module = kind(deepcopy(whole), strict=False)
        module(ids).square().sum().backward()
        each.append([p.grad_sample for p in module.parameters()])
    for expected, gradient in zip(*each, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_making_it_adds_no_handler_of_opacus_to_the_root_logger() -> None:
    """It would print Flower's lines twice. Asked of a process that has not imported Opacus yet."""
    asked = (
        "import logging, sys; from flwr_splitmix.hiding import DPSGD; DPSGD(); "
        "assert 'opacus' in sys.modules; print(logging.getLogger().handlers)"
    )
    said = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True
    ).stdout
    assert said == "[]\n"
