"""A victim's recording is what its server saw, and the vault knows which images that was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flwr_splitmix.attacks import bench
from flwr_splitmix.attacks.bench import train_victim
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.recording.reader import StepReader
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.attacks.recording.vault import VaultError
from flwr_splitmix.attacks.running.leak import measure_leak
from flwr_splitmix.attacks.simulation import ShuffleWatch
from flwr_splitmix.events import StepDone
from flwr_splitmix.observers import Observer
from flwr_splitmix.seeding import seeded_secrets
from flwr_splitmix.segments.vision.patch_shuffle import PatchShuffle
from flwr_splitmix.strategies import STRATEGIES
from tests.attacks.victims import attacked, small


class Sees(Observer):
    """Keeps the newest step as observers are told of it."""

    def on_step(self, event: StepDone) -> None:
        self.event = event


def steps_of(method: str) -> list[Step]:
    return [step for step in attacked(method).trace.steps() if isinstance(step, Step)]


@pytest.mark.parametrize("method", ["PSL", "CutMixSL", "MixupSL", "CutoutSL"])
def test_the_vault_has_the_images_that_were_sent(method: str) -> None:
    """What the first lower segment makes of them, under the recorded masks, is what was sent."""
    system = attacked(method)
    first = steps_of(method)[0]
    pictures, (batches,) = system.vault.placed([first])
    fresh = system.knowledge.fresh_lower(0)
    for release in StepReader(system.knowledge.mixer, 10, "server").releases(first):
        assert release.client is not None
        assert release.mask is not None
        images = pictures.images[batches[release.client]]
        with torch.no_grad():
            smashed = fresh(system.knowledge.normalise(images))
        ratio = release.lam if method == "MixupSL" else 1.0
        expected = ratio * smashed * release.mask[:, :, None]
        assert torch.allclose(release.smashed, expected, atol=1e-5)
        assert release.labels is not None
        assert torch.equal(release.labels, pictures.labels[batches[release.client]])


@pytest.mark.parametrize("method", ["CutMixSL", "ShuffledCutMixSL", "MixupSL", "DPCutMixSL"])
def test_mixtures_are_made_again_from_the_recording(method: str) -> None:
    victim = small(method, clients=5, samples=8, rounds=1, steps=1)
    sees, recorder = Sees(), Recorder(max_clients=2)

    class Both(Recorder):
        def on_step(self, event: StepDone) -> None:
            sees.on_step(event)
            recorder.on_step(event)

    train_victim(victim, recorder=Both())
    (step,) = recorder.trace.steps()
    assert isinstance(step, Step)
    assert sees.event.mixed is not None
    mixer = STRATEGIES[method](
        torch.nn.Identity(), num_classes=10, device="cpu", **dict(victim.options)
    ).mixer
    mixed = mixer.merge(step.uploads, step.plan, num_classes=10)
    assert sees.event.result is not None
    assert step.gradient is not None
    whole, back = sees.event.mixed.smashed, sees.event.result.gradient
    starts = range(0, len(whole), 8)
    for start in range(0, len(mixed.smashed), 8):
        batch = mixed.smashed[start : start + 8]
        (at,) = (other for other in starts if torch.equal(batch, whole[other : other + 8]))
        assert torch.equal(step.gradient[start : start + 8], back[at : at + 8])
    assert {0, 1} <= set(step.uploads)


def test_other_images_are_no_truth() -> None:
    system = attacked("PSL")
    others = {0: system.vault.data[1], 1: system.vault.data[0]}
    with pytest.raises(VaultError, match="sent other labels in step"):
        replace(system, vault=replace(system.vault, data=others)).case("server")


@pytest.mark.parametrize("method", ["PSL", "SFL", "ShuffledCutMixSL", "BatchShuffleSL"])
def test_a_case_has_both_kinds_of_victims_and_they_are_disjoint_from_public_images(
    method: str,
) -> None:
    system = attacked(method)
    case = system.case("server", trained=20, held_out=20)
    trained = case.truth.trained
    assert trained.any()
    assert int((~trained).sum()) == 20
    assert len(case.view.releases) == len(case.truth.origins)
    public = system.public(60)
    assert len(public.without(case.truth.pictures)) == 60
    held_out = case.truth.pictures.take(~trained)
    assert len(held_out.without(case.truth.pictures.take(trained))) == 20


def test_a_victim_on_disk_is_loaded_as_it_was(tmp_path: Path) -> None:
    victim = small("CutMixSL", rounds=1)
    original = train_victim(victim, directory=tmp_path)
    loaded = train_victim(victim, directory=tmp_path)
    assert loaded.summary == original.summary
    one, other = (system.case("server", trained=8, held_out=8) for system in (original, loaded))
    for release, again in zip(one.view.releases, other.view.releases, strict=True):
        assert torch.equal(release.smashed, again.smashed)
    with pytest.raises(ValueError, match="holds another victim"):
        train_victim(small("PSL"), directory=tmp_path)


def test_repeated_releases_have_new_masks() -> None:
    case = attacked("CutMixSL").case("server", trained=0, held_out=4, repeats=3)
    masks: dict[int, list[torch.Tensor]] = {}
    for release, origin in zip(case.view.releases, case.truth.origins, strict=True):
        assert release.mask is not None
        for row, (victim,) in enumerate(origin.sources.tolist()):
            masks.setdefault(victim, []).append(release.mask[row])
    assert {len(victim_masks) for victim_masks in masks.values()} == {3}
    assert any(not torch.equal(victim_masks[0], victim_masks[1]) for victim_masks in masks.values())


@pytest.mark.parametrize("method", ["PSL", "CutMixSL", "CutMixSFL", "BatchShuffleSL"])
def test_an_image_that_is_released_often_is_released_by_one_client(method: str) -> None:
    """As in training; an attacker that collects could not link what several clients send."""
    case = attacked(method).case("server", trained=0, held_out=20, repeats=4)
    senders: dict[int, list[int | None]] = {}
    for release, origin in zip(case.view.releases, case.truth.origins, strict=True):
        for victim in origin.sources[:, 0].tolist():
            senders.setdefault(victim, []).append(release.client)
    assert len(senders) == 20
    assert all(len(set(clients)) == 1 and len(clients) >= 4 for clients in senders.values())
    assert {clients[0] for clients in senders.values()} == {0, 1}


@pytest.mark.parametrize("method", ["PSL", "CutMixSL"])
def test_training_images_are_released_once_more_by_their_own_client(method: str) -> None:
    system = attacked(method)
    case = system.case("server", trained=30, held_out=0, again=True)
    pictures = {client: Pictures.of(data) for client, data in system.vault.data.items()}
    victims = set()
    for release, origin in zip(case.view.releases, case.truth.origins, strict=True):
        assert release.client is not None
        shown = case.truth.pictures.take(origin.sources[:, 0])
        assert len(shown.without(pictures[release.client])) == 0
        victims.update(origin.sources[:, 0].tolist())
    assert len(victims) == 30


def test_public_images_are_simulated_as_the_system_would() -> None:
    knowledge, public = attacked("CutMixSL").known_to("server", ["lower"]), attacked().public(32)
    assert knowledge.lowers is not None
    one, other = (
        knowledge.simulate(public.images, public.labels, np.random.default_rng(seed))
        for seed in (0, 0)
    )
    assert all(torch.equal(a.smashed, b.smashed) for a, b in zip(one, other, strict=True))
    drawn = [release.origin.sources[:, 0] for release in one if release.origin is not None]
    assert torch.equal(torch.cat(drawn).sort().values, torch.arange(32))
    for first, second in zip(one[::2], one[1::2], strict=True):
        assert first.mask is not None
        assert second.mask is not None
        assert (first.mask ^ second.mask).all()
        lower = knowledge.lower_of(first.client)
        assert lower is not None
        assert first.origin is not None
        with torch.no_grad():
            smashed = lower(knowledge.normalise(public.images[first.origin.sources[:, 0]]))
        assert torch.allclose(first.smashed, smashed * first.mask[:, :, None], atol=1e-6)


def test_noise_is_drawn_anew_for_every_release() -> None:
    knowledge, public = attacked("DPSL").known_to("server", ["lower"]), attacked().public(4)
    rng = np.random.default_rng(0)
    one, other = (knowledge.simulate(public.images, public.labels, rng) for _ in range(2))
    assert not torch.equal(one[0].smashed, other[0].smashed)


@pytest.mark.parametrize("method", ["PatchShuffleSL", "SpectralShuffleSL"])
def test_shuffles_of_frozen_edges_are_known_to_the_truth(method: str) -> None:
    """Patches put back in order are those of the edge that does not shuffle."""
    system = attacked(method)
    case = system.case("server", trained=8, held_out=0)
    release, origin = case.view.releases[-1], case.truth.origins[-1]
    assert origin.order is not None
    assert isinstance(system.knowledge.lowers, dict)
    segment = system.knowledge.lowers[0]
    plain = torch.nn.Sequential(*[m for n, m in segment.named_children() if n != "shuffle"])
    with torch.no_grad():
        images = case.truth.pictures.images[origin.sources[:, 0]]
        ordered = plain(system.knowledge.normalise(images))
    moved = ordered.gather(1, origin.order[:, :, None].expand_as(ordered))
    assert torch.allclose(release.smashed, moved, atol=1e-4)


def test_only_the_newest_shuffles_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ShuffleWatch(PatchShuffle(), newest=3)
    edge = watch._edges[0].train()
    with watch, seeded_secrets():
        passed = [edge(torch.arange(8.0).view(2, 4, 1)) for _ in range(5)]
    assert (len(watch.orders), watch.passes) == (3, 5)
    for order, patches in zip(watch.orders, passed[2:], strict=True):
        assert torch.equal(order, patches[..., 0].long() - torch.tensor([[0], [4]]))
    monkeypatch.setattr(bench, "KEPT_ORDERS", 3)  # of two rounds of two steps
    orders = train_victim(small("PatchShuffleSL")).vault.orders
    assert sorted(orders) == [(client, number) for client in range(2) for number in (1, 2, 3)]
    whole = attacked("PatchShuffleSL").vault.orders
    assert all(torch.equal(order, whole[key]) for key, order in orders.items())


def test_pictures_are_the_data_sets_without_normalisation() -> None:
    data = attacked().vault.held_out
    pictures = Pictures.of(data, [3])
    inputs, _ = data.batch(np.array([3]))
    assert torch.allclose(attacked().knowledge.normalise(pictures.images), inputs, atol=1e-5)
    assert 0 <= float(pictures.images.min()) <= float(pictures.images.max()) <= 1


def test_as_many_public_images_are_taken_as_there_are(caplog: pytest.LogCaptureFixture) -> None:
    """Images that no client has are among them."""
    system = attacked()
    spare, held_out = len(system.spare or ()), len(system.vault.held_out)
    assert len(system.public_up_to(10**9)) == spare + held_out // 2
    assert len(system.public_up_to(7)) == 7
    measure_leak(system, "linear", victims=8, budget=Budget("smoke"))
    message = (
        "lower segments with the run's first weights, which the server sent, are the adversary's"
    )
    assert f"{message}; to give it the trained ones: assume=['lower']" in caplog.text
