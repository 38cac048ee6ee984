"""Attacks that paint images: what they read, and that noise tells them nothing."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Attack, View
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.images import match
from flwr_splitmix.attacks.images.collect import Collect
from flwr_splitmix.attacks.images.decoder import Decoder
from flwr_splitmix.attacks.images.decoder_transformer import DecoderTransformer
from flwr_splitmix.attacks.images.linear import Linear
from flwr_splitmix.attacks.images.linear_decoder import LinearDecoder
from flwr_splitmix.attacks.images.match import Match, permuted
from flwr_splitmix.attacks.images.networks import reading
from flwr_splitmix.attacks.images.networks.example import queries
from flwr_splitmix.attacks.images.separate import Separate
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Adversary
from flwr_splitmix.mixers import Mixer, Mixup, NoMixing, PatchCutMix, Shuffled
from tests.attacks.images.conftest import Bench, Embedding, Noise, origin

PAINTERS = (Decoder, DecoderTransformer, Linear, LinearDecoder, Match, Collect)


@pytest.mark.parametrize("kind", PAINTERS, ids=lambda kind: kind.name)
def test_noise_in_the_place_of_smashed_data_leaves_every_attack_at_the_floor(
    bench: Bench, kind: type[Attack]
) -> None:
    view = bench.view(NoMixing(), lowers=Noise())
    guess = bench.attack(kind(), view, Budget(scale="smoke", iterations=100))
    assert bench.error(guess, view) > 0.9 * bench.floor


def test_separation_of_noise_is_at_the_floor(bench: Bench) -> None:
    view = bench.view(Mixup(2), "upper only", Noise())
    guess = bench.attack(Separate(), view)
    assert bench.error(guess, view) > 0.85 * bench.floor


@pytest.mark.parametrize("adversary", ["server", "upper only"])
def test_the_linear_inverse_of_plain_smashed_data_is_exact(
    bench: Bench, adversary: Adversary
) -> None:
    view = bench.view(NoMixing(), adversary)
    guess = bench.attack(Linear(), view)
    for value, (place, row) in zip(guess.values, guess.where, strict=True):
        truth = bench.victims.images[origin(view, place).sources[row, 0]]
        assert float((value - truth).abs().max()) < 1e-6
    # An exact image explains what was received to the last digits: the attacker knows it.
    assert float(guess.confidence.min()) > -1e-6


def test_the_linear_inverse_knows_what_weights_were_and_which_patches_came(bench: Bench) -> None:
    view = bench.view(Mixup(2))
    assert bench.error(bench.attack(Linear(), view), view) < 1e-10
    view = bench.view(PatchCutMix(2))
    guess = bench.attack(Linear(), view)
    assert 0.2 * bench.floor < bench.error(guess, view) < 0.8 * bench.floor
    # Of a sum whose weights are unknown, both images are read as their mean, or nearly.
    mixture = bench.view(Mixup(2), "upper only")
    error = bench.error(bench.attack(Linear(), mixture), mixture)
    assert 0.3 * bench.floor < error < 0.7 * bench.floor


def test_the_linear_inverse_and_a_decoder_read_more_than_either(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a masked upload one reads the patches that were sent, the other guesses the rest."""
    monkeypatch.setattr(Decoder, "epochs", {"cpu": 10})  # there are few public images here
    budget = Budget(scale="cpu")
    view = bench.view(PatchCutMix(2))
    joined, linear, decoder = (
        bench.error(bench.attack(attack, view, budget), view)
        for attack in (LinearDecoder(lr=1e-2), Linear(), Decoder(lr=1e-2))
    )
    assert joined < 0.9 * min(linear, decoder)


@pytest.mark.parametrize(
    ("mixer", "adversary"),
    [
        (NoMixing(), "server"),
        (PatchCutMix(2), "server"),
        (PatchCutMix(2), "upper only"),
        (Mixup(2), "upper only"),
        (Shuffled(NoMixing()), "upper only"),
    ],
    ids=["plain", "masks", "owners", "sums", "places"],
)
def test_joined_they_read_no_less_than_one_alone(
    bench: Bench, mixer: Mixer, adversary: Adversary
) -> None:
    budget = Budget(scale="smoke")
    view = bench.view(mixer, adversary)
    joined, linear, decoder = (
        bench.error(bench.attack(kind(), view, budget), view)
        for kind in (LinearDecoder, Linear, Decoder)
    )
    assert joined < 1.05 * min(linear, decoder) + 1e-9


def test_a_decoder_beats_the_floor_when_trained_and_not_otherwise(bench: Bench) -> None:
    view = bench.view(NoMixing())
    trained = bench.attack(Decoder(), view, Budget(scale="cpu"))
    assert bench.error(trained, view) < 0.6 * bench.floor
    attack = Decoder()
    attack.fit(view, bench.public, Budget(iterations=1))
    for module in attack.reader.modules():
        if isinstance(module, nn.Conv2d):
            module.reset_parameters()
    assert bench.error(attack.run(view), view) > bench.floor


def test_patches_that_were_not_sent_cost_the_decoder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Decoder, "epochs", {"smoke": 4})
    errors = {}
    cases: tuple[tuple[str, Mixer, Adversary], ...] = (
        ("plain", NoMixing(), "upper only"),
        ("mixed", PatchCutMix(2), "sum only"),
        ("shuffled", Shuffled(PatchCutMix(2)), "upper only"),
    )
    for name, mixer, adversary in cases:
        view = bench.view(mixer, adversary, Embedding(0, positions=name != "shuffled"))
        errors[name] = bench.error(bench.attack(Decoder(lr=1e-2), view), view)
    assert errors["plain"] < errors["mixed"] < bench.floor
    # Shuffled CutMix: no better than the mean image, but for how much ink there is at all.
    assert errors["shuffled"] > 0.9 * bench.floor


def test_a_known_mask_tells_the_transformer_whose_image_is_sought(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DecoderTransformer, "epochs", {"smoke": 10})
    view = bench.view(PatchCutMix(2), "sum only")
    attack = DecoderTransformer(lr=1e-2)
    guess = bench.attack(attack, view)
    assert attack.reader.masked
    # Whoever knows the masks takes a mixture apart: what is left is what the server has.
    for query in queries(view.releases[0], view.knowledge):
        assert query.mask is not None
        assert not query.tokens[~query.mask].any()
        assert query.tokens[query.mask].all(1).all()
    rows = {where: guess.where.count(where) for where in guess.where}
    assert set(rows.values()) == {2}
    assert bench.error(guess, view) < 0.9 * bench.floor


def test_two_images_come_out_of_one_mixture(bench: Bench) -> None:
    view = bench.view(Mixup(2), "upper only")
    guess = bench.attack(Separate(lr=3e-3), view, Budget(scale="smoke"))
    first, second = (guess.values[start::1] for start in (0, 8))
    assert guess.where[:8] == guess.where[8:16]
    assert not torch.allclose(first[:8], second[:8], atol=1e-2)
    with pytest.raises(NotApplicable, match="only such are taken apart"):
        Separate().fit(bench.view(PatchCutMix(2), "server"), bench.public)


def test_matching_finds_the_image_without_public_data(bench: Bench) -> None:
    view = bench.view(NoMixing(), batch_size=16)
    view = replace(view, releases=view.releases[:1])
    attack = Match(lr=1e-2)
    attack.fit(view, None, Budget(scale="smoke"))
    guess = attack.run(view)
    assert bench.error(guess, view) < 0.05 * bench.floor


def test_releases_of_a_client_are_matched_together_each_row_as_alone(bench: Bench) -> None:
    """One loop for all: a time limit then does not leave most releases grey."""
    view = bench.view(PatchCutMix(2))
    loops: list[int] = []
    budget = Budget(
        "smoke", iterations=30, progress=lambda stage, count, of: loops.append(count == of)
    )
    guess = bench.attack(Match(lr=1e-2), view, budget)
    assert sum(loops) == 2  # of two clients
    for place, release in enumerate(view.releases):
        alone = bench.attack(Match(lr=1e-2), replace(view, releases=[release]), budget)
        rows = [n for n, (at, _) in enumerate(guess.where) if at == place]
        assert torch.allclose(guess.values[rows], alone.values, atol=1e-3)


class Mixing(Embedding):
    """Mixes each image's tokens with those of the next one in its batch, as NaiveMixSL does."""

    def forward(self, images: Tensor) -> Tensor:
        tokens = super().forward(images)
        return 0.8 * tokens + 0.2 * tokens.roll(-1, 0)


def test_images_that_a_client_mixed_are_matched_with_their_own_neighbours(bench: Bench) -> None:
    """The last image of a release is not matched beside the first one of the next release."""
    view = bench.view(NoMixing(), lowers=Mixing(0), batch_size=4)
    mixed = replace(view.knowledge, mixes_batch=True)
    view = replace(view, knowledge=mixed, releases=view.releases[:3])
    guess = bench.attack(Match(lr=1e-2), view)
    last = [n for n, (_, row) in enumerate(guess.where) if row == 3]
    assert len(last) == 3
    assert float(guess.confidence.min()) > -0.01
    last_rows = replace(guess, values=guess.values[last], where=[guess.where[n] for n in last])
    assert bench.error(last_rows, view) < 0.05 * bench.floor


def test_a_mixed_release_is_compared_whole(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a large release would give their last images wrong neighbours."""
    monkeypatch.setattr(reading, "CHUNK", 3)
    view = bench.view(NoMixing(), lowers=Mixing(0), batch_size=8)
    lowers = reading.FrozenLowers(replace(view.knowledge, mixes_batch=True), torch.device("cpu"))
    (query,) = queries(view.releases[0], view.knowledge)
    images = bench.victims.images[origin(view, 0).sources[:, 0]]
    assert float(reading.explained(images, query, lowers).min()) > -1e-6


def test_every_client_has_its_share_of_the_time(bench: Bench) -> None:
    view = bench.view(NoMixing(), lowers={client: Embedding(client) for client in range(3)})
    guess = bench.attack(Match(lr=1e-2), view, Budget("paper", seconds=1.5))
    grey = view.knowledge.denormalise(torch.zeros(1, 1, 16, 16))
    assert not any(torch.equal(value, grey[0]) for value in guess.values)


def test_the_final_fit_has_all_the_time_that_choosing_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []
    learn = Decoder.learn

    def seen(self: Decoder, view: View, public: Pictures | None) -> None:
        limits.append(self.budget.seconds)
        learn(self, view, public)

    monkeypatch.setattr(Decoder, "learn", seen)
    Decoder.tune(bench.view(NoMixing()), bench.public, Budget("smoke", seconds=1000, iterations=2))
    *choosing, final = limits
    assert choosing == [250.0, 250.0]
    assert final is not None
    assert final > 900


def test_an_attackers_own_permutation_is_fresh_and_keeps_the_prefix() -> None:
    tokens, source = torch.randn(3, 10, 2), torch.Generator().manual_seed(0)
    once, again = (permuted(tokens, 1, source) for _ in range(2))
    assert torch.equal(once[:, 0], tokens[:, 0])
    assert not torch.equal(once, again)
    assert torch.equal(once[..., 0].sort(1).values, tokens[..., 0].sort(1).values)


def test_an_attack_that_is_stopped_gives_what_it_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    reports: list[tuple[str, int, int]] = []

    def progress(stage: str, count: int, of: int) -> None:
        reports.append((stage, count, of))
        if count == 3:
            stop.set()

    view = bench.view(NoMixing())
    guess = bench.attack(Decoder(), view, Budget(progress=progress, stop=stop))
    assert reports == [("decoder", i, 6 * 512 // 64) for i in (1, 2, 3)]
    assert guess.values.shape == (48, 1, 16, 16)
    assert guess.values.isfinite().all()
    stop.clear()
    reports.clear()
    view = replace(view, releases=view.releases[:3])
    monkeypatch.setattr(match, "BATCH", 8)
    guess = bench.attack(Match(), view, Budget(progress=progress, stop=stop))
    assert [count for _, count, _ in reports] == [1, 2, 3]
    grey = view.knowledge.denormalise(torch.zeros(16, 1, 16, 16))
    assert torch.equal(guess.values[8:], grey)
    assert not torch.equal(guess.values[:8], grey[:8])


def test_a_seed_repeats_an_attack(bench: Bench) -> None:
    view = bench.view(PatchCutMix(2), "upper only")
    budget = Budget(iterations=4)
    for kind in (Decoder, DecoderTransformer, Separate):
        first, same, other = (
            bench.attack(kind(), view, budget, seed=seed).values for seed in (1, 1, 2)
        )
        assert torch.equal(first, same)
        assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", [*PAINTERS, Separate], ids=lambda kind: kind.name)
def test_without_the_lower_segment_there_is_no_such_attack(
    bench: Bench, kind: type[Attack]
) -> None:
    adversary: Adversary = "upper only" if kind is Separate else "server"
    view = bench.view(PatchCutMix(2), adversary, knows_lowers=False)
    with pytest.raises(NotApplicable, match="no trained lower segment"):
        kind().fit(view, bench.public)
