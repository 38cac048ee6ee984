"""Noise whose variance the adversary knows is weighed against what public images look like."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.collect import Collect
from flwr_splitmix.attacks.images.collecting.gathering import unite, united_noise
from flwr_splitmix.attacks.images.embedding.noisy_reading import Errors, NoisyReader, TokenModel
from flwr_splitmix.attacks.images.embedding.patches import to_images, to_patches
from flwr_splitmix.attacks.images.linear_decoder import LinearDecoder
from flwr_splitmix.attacks.images.networks.example import Query, queries
from flwr_splitmix.attacks.images.painting.gaussian import Gaussian
from flwr_splitmix.attacks.images.painting.painter import Painter
from flwr_splitmix.attacks.images.separate import Separate
from flwr_splitmix.attacks.release import Adversary
from flwr_splitmix.attacks.running.images import attempt
from flwr_splitmix.attacks.scoring.floors import Floors
from flwr_splitmix.attacks.scoring.scores import score_guess
from flwr_splitmix.mixers import Mixer, Mixup, NoMixing, PatchCutMix, Shuffled
from flwr_splitmix.mixers.noisy import Noisy
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.noise import Clip, SmashedNoise
from tests.attacks.images.conftest import GRID, Bench, Embedding
from tests.attacks.images.test_exact_parts import segments
from tests.attacks.victims import attacked


def noisy(
    mixer: Mixer, sigma: float, clip: Clip = "none", norm: float = 1, noise: SmashedNoise = "kept"
) -> Noisy:
    options = GaussianNoise(
        sigma_s=sigma, sigma_y=0, clip=clip, clip_norm=norm, smashed_noise=noise
    )
    return Noisy(mixer, options)


def query_of(view: View) -> Query:
    return queries(view.releases[0], view.knowledge)[0]


def dense(gaussian: Gaussian, lower: Embedding, query: Query, view: View, sigma: float) -> Tensor:
    """Return the mean of all pixels given all numbers of the tokens, without any short cut."""
    knowledge = view.knowledge

    def tokens_of(flat: Tensor) -> Tensor:
        images = to_images(flat.reshape(-1, *gaussian.mean.shape), GRID, knowledge.image_shape)
        with torch.no_grad():
            tokens: Tensor = lower.double()(knowledge.normalise(images))
        return tokens

    size = gaussian.mean.numel()
    black = tokens_of(torch.zeros(1, size, dtype=torch.double))
    slopes = (tokens_of(torch.eye(size, dtype=torch.double)) - black).reshape(size, -1).T
    means = []
    for row, tokens in enumerate(query.tokens.double()):
        visible = torch.ones(tokens.shape[:1], dtype=torch.bool)
        if query.mask is not None:
            visible = query.mask[row]
        visible_numbers = visible[:, None].expand_as(tokens).flatten()
        slope = slopes[visible_numbers]
        away = (
            tokens.flatten()[visible_numbers]
            - black.flatten()[visible_numbers]
            - slope @ gaussian.mean.flatten()
        )
        among = slope @ gaussian.covariance @ slope.T + sigma**2 * torch.eye(len(slope))
        means.append(
            gaussian.mean.flatten()
            + gaussian.covariance @ slope.T @ torch.linalg.solve(among, away)
        )
    return torch.stack(means).reshape(-1, *gaussian.mean.shape)


@pytest.mark.parametrize("mixer", [NoMixing(), PatchCutMix(2)], ids=["all sent", "some sent"])
def test_the_painter_gives_the_mean_given_all_noisy_tokens(bench: Bench, mixer: Mixer) -> None:
    lower, sigma = Embedding(0), 0.4
    view = bench.view(noisy(mixer, sigma), lowers=lower)
    gaussian, query = Gaussian.fit(to_patches(bench.public.images, GRID)), query_of(view)
    read = NoisyReader.fit(view, bench.public, Budget("smoke"), 0)
    patches, errors = read(query)
    visible = torch.ones(patches.shape[:2], dtype=torch.bool) if query.mask is None else query.mask
    painted = Painter(gaussian, [])(patches, visible, errors=errors)
    truth = dense(gaussian, lower, query, view, sigma)
    assert float((painted - truth).abs().max()) < 1e-3
    # Patches taken as they were read are far from it.
    assert float((Painter(gaussian, [])(patches, visible) - truth).abs().max()) > 0.1


@pytest.mark.parametrize("classes", [False, True], ids=["all", "by class"])
def test_errors_of_nothing_change_nothing(bench: Bench, classes: bool) -> None:
    painter = Painter.of(bench.public, GRID, 10)
    assert painter is not None
    painter = painter if classes else painter.classless
    patches = to_patches(bench.victims.images, GRID).double()
    visible = torch.rand(patches.shape[:2], generator=torch.Generator().manual_seed(0)) < 0.5
    none = Errors(torch.zeros_like(visible, dtype=torch.long), torch.zeros(1, 16, 16).double())
    exact, painted = painter(patches, visible), painter(patches, visible, errors=none)
    assert torch.allclose(exact[visible], patches[visible])
    assert torch.allclose(exact, painted, atol=1e-6)


def test_every_patch_has_its_own_kind_of_error(bench: Bench) -> None:
    """One error is vast, and its patch as good as not seen; the other is none."""
    gaussian = Gaussian.fit(to_patches(bench.public.images, GRID))
    patches = to_patches(bench.victims.images[:4], GRID).double()
    visible = torch.zeros(4, 16, dtype=torch.bool)
    visible[:, :8] = True
    kinds = torch.zeros(4, 16, dtype=torch.long)
    kinds[1, :3] = 1
    eye = torch.eye(16, dtype=torch.double)
    errors = Errors(kinds, torch.stack([0 * eye, 1e9 * eye]))
    fewer = visible.clone()
    fewer[1, :3] = False
    painter = Painter(gaussian, [])
    assert torch.allclose(
        painter(patches, visible, errors=errors), painter(patches, fewer), atol=1e-5
    )


@pytest.mark.parametrize(
    ("mixer", "adversary", "times"),
    [
        (noisy(NoMixing(), 0.5), "server", 1),
        (noisy(Mixup(2), 0.5), "server", None),
        (noisy(Mixup(2), 0.5), "upper only", 2),
        (noisy(PatchCutMix(2), 0.5), "upper only", 1),
        (noisy(PatchCutMix(2), 0.5, noise="all"), "upper only", 2),
    ],
    ids=["plain", "divided", "summed", "patches", "everywhere"],
)
def test_the_variance_is_that_of_what_was_received(
    bench: Bench, mixer: Noisy, adversary: Adversary, times: int | None
) -> None:
    view = bench.view(mixer, adversary)
    quiet = bench.view(Noisy(mixer.mixer, replace(mixer.noise, sigma_s=0)), adversary)
    ((first, variance),) = {
        (q, float(q.noise.mean())) for q in [query_of(view)] if q.noise is not None
    }
    apart = first.tokens - query_of(quiet).tokens
    if first.mask is not None:
        apart = apart[first.mask]
    assert float(apart.var()) == pytest.approx(variance, rel=0.1)
    if times is not None:
        assert variance == pytest.approx(times * 0.25)
    assert query_of(quiet).noise is None


def test_averaging_leaves_as_much_noise_as_is_said() -> None:
    source = torch.Generator().manual_seed(0)
    masks = torch.rand(5, 2, 6, generator=source) < 0.6
    masks[:, 1, 5] = False
    noise = torch.rand(5, 2, 1, generator=source).double().expand(5, 2, 6)
    draws = [
        unite(torch.randn(5, 2, 6, 4, generator=source) * noise[..., None].sqrt(), masks)[0]
        for _ in range(4000)
    ]
    remaining_noise = united_noise(noise, masks)
    assert remaining_noise is not None
    spread = torch.stack(draws).square().mean((0, 3))
    assert torch.allclose(spread[masks.any(0)].double(), remaining_noise[masks.any(0)], rtol=0.1)
    assert remaining_noise[~masks.any(0)].isposinf().all()
    assert not masks.any(0).all()
    assert united_noise(None, masks) is None


@pytest.mark.parametrize(
    ("mixer", "part"),
    [
        (noisy(NoMixing(), 1.0), 0.6),
        (noisy(PatchCutMix(2), 0.3), 0.9),
        (noisy(Mixup(2), 0.3), 0.6),
        (noisy(NoMixing(), 0.3, "sample", 2.0), 0.6),
        (noisy(NoMixing(), 0.3, "patch", 0.5), 0.9),
    ],
    ids=["plain", "masks", "sums", "clipped samples", "clipped patches"],
)
def test_a_painter_that_knows_the_noise_reads_more(bench: Bench, mixer: Noisy, part: float) -> None:
    view, budget = bench.view(mixer), Budget("smoke", iterations=2)
    aware = bench.error(bench.attack(LinearDecoder(), view, budget), view)
    with pytest.MonkeyPatch.context() as patch:
        ignorant_of_noise(patch)
        ignorant = bench.error(bench.attack(LinearDecoder(), view, budget), view)
    assert aware < part * ignorant
    assert aware < bench.floor


def ignorant_of_noise(patch: pytest.MonkeyPatch) -> None:
    """Let the attacker know nothing of the noise."""
    for module in ("embedding.noisy_reading", "collect"):
        patch.setattr(f"flwr_splitmix.attacks.images.{module}.has_noise", lambda _: False)
    patch.setattr("flwr_splitmix.attacks.images.networks.example.noise_in", lambda *_: None)


def test_a_patch_of_which_nothing_came_is_known_to_be_unknown() -> None:
    """Tokens of a patch embedding may have no error at all but the noise."""
    source = torch.Generator().manual_seed(0)
    patches = torch.rand(64, 2, 3, generator=source, dtype=torch.double)
    weights = torch.randn(3, 8, generator=source, dtype=torch.double)
    model = TokenModel.fit(patches @ weights, patches, torch.ones(64, 2, dtype=torch.bool))
    model = replace(model, strengths=torch.zeros(8, dtype=torch.double))
    noise = torch.tensor([[1e-6, torch.inf]], dtype=torch.double)
    read, errors = model.read(patches[:1] @ weights, noise)
    assert torch.allclose(read[0, 0], patches[0, 0], atol=1e-4)
    assert read[0, 1].tolist() == [0.5] * 3
    assert errors is not None
    received, missing = errors.covariances[errors.kinds[0]].diagonal(dim1=1, dim2=2).mean(1)
    assert received < 1e-4
    assert missing > 1e3


def test_a_trained_system_with_noise_is_read_better_by_who_knows_it() -> None:
    """Its patches are clipped as well, and its lower segments are trained, one for each client."""
    system = attacked("DPCutMixSL")
    case = system.case("server", trained=32, held_out=0, assume=["lower"])
    public, budget = system.public(400), Budget("smoke", iterations=2)

    def error() -> float:
        attack, guess = attempt(LinearDecoder, case, public, budget, setting={"lr": 1e-3})
        floors = Floors.of(attack, case.view, public)
        return score_guess("images", guess, case.truth, floors).main.value

    aware = error()
    with pytest.MonkeyPatch.context() as patch:
        ignorant_of_noise(patch)
        assert aware < 0.95 * error()


@pytest.mark.parametrize("kind", [Collect, Separate], ids=lambda kind: kind.name)
def test_what_is_collected_or_taken_apart_knows_the_noise_too(
    bench: Bench, kind: type[Attack]
) -> None:
    mixer, budget = noisy(PatchCutMix(2), 0.3), Budget("smoke", iterations=2)
    if kind is Collect:
        view = bench.view(mixer, times=4)
    else:
        view = bench.view(mixer, "upper only", segments(3))
    aware = bench.error(bench.attack(kind(), view, budget), view)
    with pytest.MonkeyPatch.context() as patch:
        ignorant_of_noise(patch)
        ignorant = bench.error(bench.attack(kind(), view, budget), view)
    assert aware < 0.95 * ignorant


def test_places_that_a_mixer_with_noise_changed_are_sought(bench: Bench) -> None:
    """With noise around it, a shuffle could be overlooked, and patches taken as in their places."""
    view = bench.view(
        noisy(Shuffled(PatchCutMix(2)), 0.02), "upper only", segments(3, positions=False)
    )
    attack = Separate()
    guess = bench.attack(attack, view)
    assert attack.exact
    assert bench.error(guess, view) < 0.4 * bench.floor
