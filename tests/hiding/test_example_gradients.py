"""Gradients of single texts: against those taken text by text, and where layers mix texts."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from transformers import Gemma3TextConfig

from flwr_splitmix.clients import TextSet, UShapeClient
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import DPSGD, Hiding
from flwr_splitmix.hiding.example_gradients import ExampleGradients, unsupported
from flwr_splitmix.hiding.unfit import UnfitError
from flwr_splitmix.segments.language import LanguageCut, cut_language_model
from tests.clients.ushape import encode
from tests.hiding.dp_sgd import ORDER, QUIET, TOY, step
from tests.segments.language.tiny_models import ENCODERS, GROUPED, config_of, whole_model


def one_by_one(
    client: Any, batch: MaskedBatch, trunk: Any, bound: float
) -> dict[str, torch.Tensor]:
    """Return the mean of the texts' gradients, each taken by itself, and clipped.

    The client must have taken no step yet: then there are no hooks.
    """
    names = dict(client.segments.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in names.items()}
    for i in range(len(batch.inputs)):
        text = MaskedBatch(batch.inputs[i : i + 1], batch.mask[i : i + 1], batch.labels[i : i + 1])
        sent = Hiding.obfuscate(client.hiding, text)
        loss = client.loss(trunk(sent.messages[0], text.mask), sent)
        derivatives = torch.autograd.grad(loss, list(names.values()), allow_unused=True)
        gradients = {n: g for n, g in zip(names, derivatives, strict=True) if g is not None}
        length = torch.stack([g.norm() for g in gradients.values()]).norm()
        for name, g in gradients.items():
            total[name] += g * (bound / (length + 1e-6)).clamp(max=1) / len(batch.inputs)
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
    batch = MaskedBatch(ids, mask, labels)
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
    sent = client.hiding.obfuscate(MaskedBatch(ids, torch.ones_like(ids), ids))
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
    batch = MaskedBatch(ids, mask, labels)
    expected = one_by_one(client, batch, trunk, 0.5)
    gradients = step(client, batch, trunk)
    assert gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
@pytest.mark.parametrize("frozen", [False, True], ids=["", "biases frozen"])
def test_a_layer_that_is_called_once_for_all_texts_is_refused(family: str, frozen: bool) -> None:
    """Opacus takes the gradient by DeBERTa's embeddings of distances for the first text's.

    It is refused before the round begins.
    """
    model = whole_model(config_of(family, "classification"), "classification")
    head, _, tail = cut_language_model(model, LanguageCut(1, 1)).all_here()
    for name, weights in head.named_parameters():
        weights.requires_grad_(not (frozen and name.endswith("bias")))
    data = TextSet([torch.tensor([3, 4, 5])] * 4, [0] * 4)
    client = UShapeClient(head, tail, data, hiding=DPSGD(), device="cpu", batch_size=3)
    with pytest.raises(
        ValueError, match=r"head\.stack\.layers\.0\.attention.* with 1 row for 2 examples"
    ):
        client.attach(ORDER, None)


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
    assert not unsupported(client.segments)


def test_a_layer_that_does_not_keep_texts_apart_is_named() -> None:
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    encode(client)
    hiding: Any = client.hiding
    hiding._gradients.trainable_parameters()[0].grad_sample = torch.zeros(12, 23, 5)
    with pytest.raises(UnfitError, match=r"of shape \(23, 5\) does not keep examples apart"):
        hiding.before_update()


def test_weights_without_a_gradient_for_each_text_are_not_trained_without_noise() -> None:
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    encode(client)
    hiding: Any = client.hiding
    weights = hiding._gradients.trainable_parameters()[0]
    weights.grad_sample, weights.grad = None, torch.ones_like(weights)
    with pytest.raises(UnfitError, match=r"weights of shape \(23, 5\) are used outside of their"):
        hiding.before_update()


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
    for kind in (GradSampleModule, ExampleGradients):
        module = kind(deepcopy(whole), strict=False)
        module(ids).square().sum().backward()
        each.append([p.grad_sample for p in module.parameters()])
    for expected, gradient in zip(*each, strict=True):
        torch.testing.assert_close(gradient, expected)


def watched(layer: torch.nn.Module, inputs: torch.Tensor) -> ExampleGradients:
    """Take the gradients of single examples, (b, ...), through a layer."""
    gradients = ExampleGradients(layer, strict=False)
    outputs = gradients(inputs)
    pull = torch.linspace(-1, 1, outputs[0].numel(), dtype=outputs.dtype).view(outputs[0].shape)
    (outputs * pull).mean(0).sum().backward()
    return gradients


def sums(inputs: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Return the clipped sum of all weights of a layer, which is the same for all inputs."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(inputs.shape[1], 30).to(inputs.dtype)
    totals = watched(layer, inputs).clipped_sums(clip_norm)
    return torch.cat([total.flatten() for total in totals])


def test_an_example_moves_the_sum_in_bfloat16_by_no_more_than_is_charged() -> None:
    """Opacus sums in the weights' dtype, which can move by 2.6 clip norms of the allowed 2."""
    source = torch.Generator().manual_seed(1)
    inputs = (torch.ones(512, 40) + 0.1 * torch.randn(512, 40, generator=source)).bfloat16()
    replaced = inputs.clone()
    replaced[3] = -replaced[3]
    one, other = sums(inputs, 1.0), sums(replaced, 1.0)
    assert one.dtype == torch.float32
    assert float((one.double() - other.double()).norm()) <= 2 * (1 + 1e-4)
    empty = sums(torch.cat([inputs[:3], inputs[4:]]), 1.0)
    assert float((one.double() - empty.double()).norm()) <= 1 + 1e-4


@pytest.mark.parametrize("clip_norm", [1e6, 0.3])
def test_in_float32_the_clipped_sum_is_that_of_opacus(clip_norm: float) -> None:
    torch.manual_seed(0)
    layer, inputs = torch.nn.Linear(6, 3), torch.randn(8, 6)
    totals = list(watched(layer, inputs).clipped_sums(clip_norm))
    theirs = DPOptimizer(
        torch.optim.SGD(layer.parameters()),
        noise_multiplier=1.0,
        max_grad_norm=clip_norm,
        expected_batch_size=8,
    )
    theirs.clip_and_accumulate()
    weights: list[Any] = list(layer.parameters())
    for total, weight in zip(totals, weights, strict=True):
        assert torch.equal(total, weight.summed_grad)


def test_the_gradient_in_bfloat16_is_rounded_once_behind_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sum that is rounded before the noise lets two neighbours' sums differ for certain."""
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for()
    client.segments.bfloat16()
    client.attach(ORDER, None)
    noised: list[torch.Tensor] = []

    def without_noise(tensor: torch.Tensor, sigma: float) -> torch.Tensor:
        noised.append(tensor)
        return tensor

    monkeypatch.setattr("flwr_splitmix.hiding.dp_sgd.add_noise", without_noise)
    batch = MaskedBatch.of(client.batches.next_batch(0, 0), client.device)
    learned = step(client, batch, toy.server().bfloat16())
    assert {total.dtype for total in noised} == {torch.float32}
    for total, gradient in zip(noised, learned.values(), strict=True):
        assert torch.equal(gradient, (total / len(batch.inputs)).bfloat16())
