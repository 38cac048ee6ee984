"""Strategies and options that are incompatible with a third-party mixer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix import adamw
from flwr_splitmix.links import LinkError, MixerLink
from flwr_splitmix.mixers import Mixup, Noisy, NoMixing, PatchCutMix
from flwr_splitmix.mixers.described import describe, mixer_of
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.server.aggregation import fedavg
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.strategies import PSL, CutMixSL, MixGuard, SplitStrategy, USplitSL
from flwr_splitmix.testing.toy_texts import text_toy
from tests.links.mixer.third_party import TOKEN, TOY, make, secret


@pytest.fixture
def link(tmp_path: Path) -> MixerLink:
    return MixerLink("127.0.0.1:9444", secret(tmp_path / "token", TOKEN))


def asked_by(strategy: SplitStrategy) -> Mapping[str, Any]:
    """Return what a strategy asks of the mixer once its run is prepared."""
    requests: list[Mapping[str, Any]] = []
    link = strategy.link
    assert isinstance(link, MixerLink)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "request", lambda mixing, _: requests.append(mixing))
        strategy.prepare(None)
    (mixing,) = requests
    return mixing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregator": fedavg()}, "averages lower segments"),
        ({"evaluation": "federated"}, "evaluation is 'federated'"),
        ({"pace": Pace(straggler="skip")}, "straggler is 'skip'"),
        ({"pace": Pace(group_order="arrival")}, "group_order is 'arrival'"),
        ({"pace": Pace(grouping="speed")}, "grouping is 'speed'"),
        ({"micro_batches": 2}, "micro_batches is 2"),
        ({"micro_batches": "auto"}, "micro_batches is 'auto'"),
    ],
)
def test_an_option_that_needs_single_clients_is_refused(
    options: dict[str, Any], message: str, link: MixerLink
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        make("CutMixSL", link, **options)
    assert str(refused.value).endswith(", or mix in the ServerApp (link-via '')")


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (lambda link: PSL(TOY.upper(), link=link), "cannot be NoMixing"),
        (lambda link: CutMixSL(TOY.upper(), link=link), "min_patches is 0"),
        (
            lambda link: CutMixSL(TOY.upper(), min_patches=1, k_times=True, link=link),
            "with k_times a group's",
        ),
    ],
)
def test_a_mixer_that_hides_nobody_is_refused(
    maker: Callable[[MixerLink], Any], message: str, link: MixerLink
) -> None:
    with pytest.raises(ValueError, match=message):
        maker(link)


def test_the_mixer_is_asked_for_what_the_upper_segment_expects(link: MixerLink) -> None:
    strategy = CutMixSL(replace(TOY, prefix=1).upper(), min_patches=1, link=link)
    assert asked_by(strategy)["geometry"] == {
        "patches": TOY.patches, "width": TOY.width, "prefix": 1, "grid": list(TOY.grid),
    }  # fmt: skip


@pytest.mark.parametrize("kind", [USplitSL, MixGuard])
def test_the_u_shape_has_nothing_to_mix_for_it(kind: Any, link: MixerLink) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} has the U shape.*give it a StreamLink"):
        kind(text_toy(kind.__name__, clients=2).server(), link=link)


def test_a_round_without_messages_is_refused(link: MixerLink) -> None:
    with pytest.raises(LinkError, match="needs at least one node"), link.round(None, []):
        pass


def test_clients_of_this_process_are_mixed_here(link: MixerLink) -> None:
    with pytest.raises(ValueError, match="fit mixes here: give it no link"):
        make("CutMixSL", link).fit(TOY.make_clients(adamw(0.01)), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"via": "mixer.example"}, "via (link-via) is 'mixer.example'; it must be host:port"),
        ({"via": "mixer.example:0"}, "via (link-via) is 'mixer.example:0'"),
        (
            {"certificate": "/c.crt"},
            "certificate (ssl-certfile) is set without key (ssl-keyfile); give both or neither: ",
        ),
        ({"ca": "/no/ca.crt"}, "ca (ssl-ca-certfile): /no/ca.crt cannot be read"),
    ],
)
def test_a_link_that_cannot_be_is_named(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    usual = {"via": "mixer.example:9444", "token_file": secret(tmp_path / "token", TOKEN)}
    with pytest.raises(LinkError, match=re.escape(message)):
        MixerLink(**{**usual, **options})


@pytest.mark.parametrize(
    "mixer",
    [
        PatchCutMix(3, None, min_patches=2, rounding="largest-remainder", regroup="epoch"),
        PatchCutMix(2, 0.5, min_patches=1, gradient="broadcast", mask_per_sample=True),
        Mixup(4, 2.0),
    ],
)
def test_a_description_makes_the_same_mixer(mixer: Any) -> None:
    copy = mixer_of(describe(mixer))
    assert type(copy) is type(mixer)
    assert vars(copy) == vars(mixer)
    noise = GaussianNoise(sigma_s=2.0, sigma_y=0.5, clip="range", smashed_noise="all")
    noisy = mixer_of(describe(Noisy(mixer, noise)))
    assert isinstance(noisy, Noisy)
    assert noisy.noise == noise
    assert vars(noisy.mixer) == vars(mixer)


@pytest.mark.parametrize("trusted", [False, True])
def test_with_noise_the_ledger_is_the_mixers_whatever_is_said_of_it(
    trusted: bool, link: MixerLink
) -> None:
    noise = GaussianNoise(sigma_s=1.0, sigma_y=1.0)
    strategy = make("CutMixSL", link, noise=noise, delta=1e-4, trusted_mixer=trusted)
    assert strategy.ledger is None
    assert strategy.ledger_elsewhere is not None
    request = asked_by(strategy)
    assert request["ledger"] == {"delta": 1e-4, "relation": "replace"}
    assert request["mixing"]["noise"] == noise.to_plain()
    assert strategy.keeps_ledger


def test_only_listed_mixers_can_be_described_and_made() -> None:
    class Own(PatchCutMix):
        """A user's own mixer."""

    for mixer in (NoMixing(), Own(min_patches=1)):
        with pytest.raises(ValueError, match="a mixer elsewhere cannot be"):
            describe(mixer)
    for odd in ({}, {"mixer": "Own"}, {"mixer": 3}, {"mixer": "PatchCutMix"}):
        with pytest.raises(ValueError, match=r"unknown mixer|min_patches is 0"):
            mixer_of(odd)
