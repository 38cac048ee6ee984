"""Optimizers and schedules follow the recipes."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.experiments import SCALES, variant
from flwr_splitmix.experiments.cells import Recipe
from flwr_splitmix.experiments.recipes import optimizer_of, schedule_of
from flwr_splitmix.experiments.segments import make_segments, whole
from flwr_splitmix.optimizers import ScheduledOptimizer

MIXING = SCALES["paper"].recipes["mixing"]
SHUFFLING = SCALES["paper"].recipes["shuffling"]


def test_the_mixing_recipe_is_the_papers() -> None:
    """CutMixSL, section 4; what it leaves open, like both ends of the schedule, is as in DeiT."""
    module = torch.nn.Linear(2, 2)
    (group,) = optimizer_of(MIXING, module)(module.parameters()).param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (1e-3, 0.05, (0.9, 0.999))
    schedule = schedule_of(MIXING)
    rates = [1e-3 * schedule(epoch, 600) for epoch in (0, 5, 302.5, 600)]
    assert rates == pytest.approx([1e-6, 1e-3, (1e-3 + 1e-5) / 2, 1e-5])


def rates_at(recipe: Recipe, epoch: float) -> tuple[set[float], set[float]]:
    """Return the learning rates of the classifier and of everything else."""
    cell = SCALES["cpu"].cell(variant("PSL"))
    upper = make_segments(cell, 1, 10).upper
    scheduled = ScheduledOptimizer(upper, optimizer_of(recipe, upper), schedule_of(recipe))
    assert scheduled.optimizer is not None
    scheduled.step(epoch, recipe.epochs)
    by_parameter = {
        id(p): group["lr"] for group in scheduled.optimizer.param_groups for p in group["params"]
    }
    named = {name: by_parameter[id(p)] for name, p in upper.named_parameters()}
    head = {rate for name, rate in named.items() if "head" in name}
    return head, {rate for name, rate in named.items() if "head" not in name}


def test_the_shuffling_recipe_has_a_rate_for_the_classifier() -> None:
    """Patch Shuffling, section V-A: head 0.05 to 2e-4, blocks 5e-4 to 2e-6, decay 5e-4."""
    for epoch, expected in ((0, (0.05, 5e-4)), (60, (2e-4, 2e-6))):
        head, blocks = rates_at(SHUFFLING, epoch)
        assert [*head, *blocks] == pytest.approx(expected)
    module = torch.nn.Linear(2, 2)
    (group,) = optimizer_of(SHUFFLING, module)(module.parameters()).param_groups
    assert (group["momentum"], group["weight_decay"], group["lr"]) == (0.9, 5e-4, 5e-4)


def test_spectra_have_twice_the_rates_of_the_papers_recipe() -> None:
    paper = SCALES["paper"]
    cells = {
        method: paper.cell(variant(method, model="T2T-ViT-24", clients=1), track="shuffling")
        for method in ("PatchShuffleSL", "SpectralShuffleSL")
    }
    recipe = cells["SpectralShuffleSL"].recipe
    assert (recipe.head_lr, recipe.lr) == (0.1, 0.001)
    assert cells["PatchShuffleSL"].recipe == SHUFFLING


@pytest.mark.parametrize("model", ["ViT-Tiny", "PiT-Tiny", "VGG-16"])
@pytest.mark.parametrize("method", ["PSL", "ShuffledCutMixSL"])
def test_every_model_of_the_tables_can_be_cut_for_every_method(model: str, method: str) -> None:
    cell = SCALES["cpu"].cell(variant(method, model=model))
    segments = make_segments(cell, 1, 10)
    images = torch.randn(2, 1, 32, 32)
    smashed = segments.lower(images)
    assert smashed.shape[:2] == (2, 16 if model == "ViT-Tiny" else 64)
    whole(segments).eval()
    assert torch.equal(whole(segments)(images), segments.upper(segments.lower(images)))
    assert segments.upper(smashed).shape == (2, 10)


@pytest.mark.parametrize(
    ("method", "kappa"),
    [("PatchShuffleSL", None), ("BatchShuffleSL", 0.4), ("SpectralShuffleSL", None)],
)
def test_frozen_edges_shuffle_as_the_method_says(method: str, kappa: float | None) -> None:
    options = {} if kappa is None else {"kappa": kappa}
    cell = SCALES["smoke"].cell(
        variant(method, options, model="T2T-ViT-24", clients=1), track="shuffling"
    )
    lower = make_segments(cell, 1, 10).lower
    assert not any(p.requires_grad for p in lower.parameters())
    edge = {"PatchShuffleSL": "patch", "BatchShuffleSL": "batch", "SpectralShuffleSL": "spectral"}
    assert getattr(lower, "edge", None) == {"method": edge[method], "kappa": kappa or 1.0}
