"""A client's costs, against values computed by hand."""

from __future__ import annotations

import torch
from torch import nn

from flwr_splitmix.attacks.defences import opposed
from flwr_splitmix.experiments import SCALES, variant
from flwr_splitmix.experiments.segments import make_segments, whole
from flwr_splitmix.optimizers import adamw
from flwr_splitmix.segments.costs import measure


def test_a_linear_layer() -> None:
    costs = measure(nn.Linear(8, 4, bias=False), torch.ones(3, 8), adamw(), averages=True)
    assert costs.parameters == 32
    assert costs.parameter_bytes == costs.exchanged_bytes == 128
    assert costs.optimizer_bytes == 2 * 128 + 4  # two moments and the step
    assert costs.activation_bytes == 3 * 8 * 4  # the input, for the gradient of the weights
    assert costs.forward_macs == 32
    assert costs.training_macs == 64  # no gradient for the input


def test_a_frozen_module_costs_a_forward_pass() -> None:
    module = nn.Linear(8, 4).requires_grad_(False)
    costs = measure(module, torch.ones(3, 8), adamw(), averages=False)
    assert costs.optimizer_bytes == costs.activation_bytes == costs.exchanged_bytes == 0
    assert costs.forward_macs == costs.training_macs == 32


def test_a_simulated_attacker_keeps_its_own_optimizer() -> None:
    """Patch Shuffling, Table VI: an edge that trains against an attacker trains that, too."""
    segments = make_segments(SCALES["smoke"].cell(variant("PSL")), 1, 10)
    images = torch.ones(2, 1, 32, 32)
    plain = measure(segments.lower, images, adamw(), averages=False)
    edge = opposed(segments.lower)
    costs = measure(edge, images, adamw(), averages=False)
    weights = [p.nbytes for p in edge.opponent.parameters()]
    attacker = sum(2 * size + 4 for size in weights)  # two moments and the step
    assert costs.optimizer_bytes == plain.optimizer_bytes + attacker
    assert costs.parameter_bytes == plain.parameter_bytes + sum(weights)


def test_a_module_is_as_it_was() -> None:
    module = nn.Linear(8, 4)
    before = module.weight.clone()
    measure(module, torch.ones(3, 8), adamw(), averages=False)
    assert torch.equal(module.weight, before)
    assert module.weight.grad is None


def test_an_embedding_and_a_transformer() -> None:
    """ViT-Tiny of scale cpu: 16 patches of 8 x 8, width 192, a class token, 6 blocks."""
    segments = make_segments(SCALES["cpu"].cell(variant("PSL")), 1, 10)
    images = torch.ones(2, 1, 32, 32)
    lower = measure(segments.lower, images, adamw(), averages=False)
    model = measure(whole(segments), images, adamw(), averages=True)
    assert lower.forward_macs == 16 * 64 * 192
    block = 17 * 12 * 192**2 + 2 * 17 * 17 * 192
    assert model.forward_macs == lower.forward_macs + 6 * block + 192 * 10
    assert model.training_macs > 2.9 * model.forward_macs
    assert lower.activation_bytes < model.activation_bytes / 50
