"""Mixtures of one embedding: the likeliest mask that all rows share, and what is read by it."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.attribute import Attribute
from flwr_splitmix.attacks.images.embedding.joint_parts import JointParts, share_right
from flwr_splitmix.attacks.images.linear_decoder import painter_of
from flwr_splitmix.attacks.images.mixtures.joint_mask import JointMask, sizes_of
from flwr_splitmix.attacks.images.mixtures.likelihood import PatchGaussians
from flwr_splitmix.attacks.images.networks.example import whole_releases
from flwr_splitmix.attacks.images.painting.gaussian import Gaussian
from flwr_splitmix.attacks.images.separate import Separate
from flwr_splitmix.attacks.running.leak import measure_leak
from flwr_splitmix.mixers import Mixer, PatchCutMix
from tests.attacks.images.conftest import Bench, Embedding
from tests.attacks.victims import attacked


@pytest.mark.parametrize(
    ("mixer", "lowers", "part"),
    [
        (PatchCutMix(2), None, 0.25),
        (PatchCutMix(2), {0: Embedding(0), 1: Embedding(0)}, 0.25),
    ],
    ids=["one for all", "several equal ones"],
)
def test_mixtures_of_one_known_embedding_are_taken_apart_without_training(
    bench: Bench, mixer: Mixer, lowers: dict[int, Embedding] | None, part: float
) -> None:
    """A transformer alone stays at its floor."""
    trained: list[str] = []
    budget = Budget("smoke", progress=lambda stage, count, of: trained.append(stage))
    view = bench.view(mixer, "upper only", lowers)
    attack = Separate.tune(view, bench.public, budget)
    assert attack.exact
    assert "separate" not in trained
    assert bench.error(attack.run(view), view) < part * bench.floor


def test_the_shared_mask_of_one_known_embedding_is_found(bench: Bench) -> None:
    view = bench.view(PatchCutMix(2), "upper only")
    guess = bench.attack(Attribute(), view)
    right = []
    for place, release in enumerate(view.releases):
        rows = torch.tensor([at == place for at, _ in guess.where])
        owners = guess.values[rows]
        assert bool((owners == owners[0]).all()), "rows of a release have one mask"
        origin = release.origin  # type: ignore[attr-defined]
        true = torch.where(origin.owners == origin.members[0], 0, 1)
        agree = (owners == true).double().mean(1)
        right.append(float(torch.maximum(agree, 1 - agree).mean()))
    assert sum(right) / len(right) > 0.85


def test_patches_of_three_members_are_told_apart_better_than_by_chance(bench: Bench) -> None:
    view = bench.view(PatchCutMix(3), "upper only", batch_size=8)
    painter = painter_of(view, bench.public, Budget("smoke"))
    assert painter is not None
    parts = JointParts(view, bench.public, painter, Budget("smoke"), 0)
    right = [
        share_right(parts(each.query()).owners, each)
        for each in whole_releases(view, bench.victims, 64, 1)
    ]
    assert sum(right) / len(right) > 0.7


def a_gaussian(seed: int, places: int = 4, numbers: int = 3) -> Gaussian:
    random = torch.Generator().manual_seed(seed)
    root = torch.randn(places * numbers, places * numbers, generator=random).double()
    covariance = root @ root.T + torch.eye(len(root))
    return Gaussian(torch.randn(places, numbers, generator=random).double(), covariance)


def test_a_place_beside_others_is_as_likely_as_all_divided_by_the_others() -> None:
    gaussians = PatchGaussians.of(a_gaussian(0), [a_gaussian(1), a_gaussian(2)], pieces=2)
    components = torch.randn(5, 4, 2, generator=torch.Generator().manual_seed(3)).double()
    mask = torch.tensor([True, False, True, False])
    density, beside = gaussians.together(components, mask)
    for place in range(4):
        other = mask.clone()
        other[place] = not mask[place]
        apart = gaussians.together(components, other).density - density
        assert torch.allclose(beside[:, place], -apart if mask[place] else apart)


def test_densities_are_those_of_the_components_up_to_a_constant() -> None:
    gaussian = a_gaussian(0)
    gaussians = PatchGaussians.of(gaussian, [gaussian], pieces=3)
    patches = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(1)).double()
    ours = gaussians.together(gaussians.components(patches), torch.ones(4, dtype=torch.bool))
    theirs = torch.distributions.MultivariateNormal(gaussian.mean.flatten(), gaussian.covariance)
    logs = theirs.log_prob(patches.flatten(1))  # type: ignore[no-untyped-call]
    apart = ours.density[:, 0] - logs
    assert torch.allclose(apart, apart[:1].expand(6))


def test_pairs_are_as_likely_together_as_they_depend_on_each_other() -> None:
    covariance = torch.eye(4).double()
    covariance[0, 1] = covariance[1, 0] = 0.9
    gaussian = Gaussian(torch.zeros(4, 1).double(), covariance)
    gaussians = PatchGaussians.of(gaussian, [gaussian], pieces=1)
    value = 1.5
    alike = gaussians.pairs(torch.full((2, 4, 1), value).double())
    determinant = 1 - 0.9**2
    joint = (
        -(2 * value**2 - 1.8 * value**2) / determinant / 2
        - torch.tensor(determinant).double().log() / 2
    )
    assert torch.allclose(alike[0, 1], 2 * (joint + value**2))
    assert torch.allclose(alike[2:], torch.zeros(2, 4).double(), atol=1e-12)


def test_labels_tell_how_many_patches_members_have() -> None:
    labels = torch.tensor([[0.25, 0.75, 0], [0, 1.0, 0], [0, 0.75, 0.25]]).double()
    sizes = sizes_of(labels, 2, 16)
    assert sizes is not None
    assert sizes.counts.tolist() == [12, 4]
    assert float(sizes.cost(torch.tensor([4, 12]))) == 0
    assert float(sizes.cost(torch.tensor([8, 8]))) > 10
    assert sizes_of(labels[1:2], 2, 16) is None
    assert sizes_of(labels, 3, 16) is None


def test_the_same_seed_finds_the_same_mask(bench: Bench) -> None:
    view = bench.view(PatchCutMix(2), "upper only")
    painter = painter_of(view, bench.public, Budget("smoke"))
    assert painter is not None
    patches = torch.rand(8, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    first, again = (JointMask(painter, Budget("smoke"))(patches, 2, seed=4) for _ in range(2))
    assert torch.equal(first, again)
    assert set(first.tolist()) <= {0, 1}


def test_a_spent_budget_still_finds_a_mask(bench: Bench) -> None:
    view = bench.view(PatchCutMix(2), "upper only")
    painter = painter_of(view, bench.public, Budget("smoke"))
    assert painter is not None
    budget = Budget("smoke", seconds=0.0)
    assert len(JointMask(painter, budget)(torch.rand(8, 16, 16), 2)) == 16


def test_a_server_without_the_mixer_reads_with_the_runs_first_weights() -> None:
    """The server has sent those; the trained ones are never given to it."""
    system = attacked("CutMixSL")
    knowledge = system.known_to("upper only")
    assert knowledge.untrained
    assert knowledge.lowers is not system.knowledge.first
    assert not system.known_to("upper only", ["lower"]).untrained
    assert system.known_to("eavesdropper").lowers is None
    measure = measure_leak(system, "separate", "upper only", budget=Budget("smoke"))[0]
    assert measure.high < measure.floor


def test_the_first_weights_are_those_that_clients_began_with() -> None:
    """One step of training moves a patch embedding little, another one's is elsewhere."""
    system = attacked("CutMixSL")
    first, other = system.knowledge.first, system.knowledge.own_lower(0)
    assert first is not None
    trained = system.knowledge.lower_of(0)
    assert trained is not None

    def apart(one: torch.nn.Module, two: torch.nn.Module) -> float:
        pairs = zip(one.parameters(), two.parameters(), strict=True)
        return sum(float((a - b).detach().square().sum()) for a, b in pairs)

    assert 0 < apart(first, trained) < 0.1 * apart(other, trained)


def test_errors_make_patches_tell_less() -> None:
    """They are no part of the images."""
    gaussian = a_gaussian(0)
    errors = 2 * torch.eye(3).double().expand(4, 3, 3)
    with_them = Gaussian(gaussian.mean, gaussian.covariance + 2 * torch.eye(12))
    blurred = PatchGaussians.of(gaussian, [gaussian], pieces=3).blurred(errors)
    fitted = PatchGaussians.of(with_them, [with_them], pieces=3)
    patches = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(1)).double()
    mask = torch.tensor([True, True, False, True])
    one, other = (each.together(each.components(patches), mask) for each in (blurred, fitted))
    assert torch.allclose(one.density, other.density)
    assert torch.allclose(one.beside, other.beside)
