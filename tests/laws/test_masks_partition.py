"""Law 3 over every way to draw masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flwr_splitmix.mixers import (
    GroupMixer,
    Member,
    Mixer,
    Mixup,
    Noisy,
    NoMixing,
    PatchCutMix,
    PatchShare,
    Plan,
    RandomCutout,
    Share,
    Shuffled,
    SmashedShape,
    VanillaCutMix,
)
from flwr_splitmix.mixers.plan import grow
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.testing.laws import Toy, check_masks_partition, check_split_equals_whole
from tests.laws.makers import NAMES, block_cutmix, maker

ALPHAS = st.one_of(st.none(), st.sampled_from([1e-3, 0.1, 1.0, 2.0, 6.0, 100.0]))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_patch_cutmix(data: st.DataObject) -> None:
    k = data.draw(st.integers(2, 6))
    least = data.draw(st.integers(0, 2))
    mixer = PatchCutMix(
        k,
        data.draw(ALPHAS),
        rounding=data.draw(st.sampled_from(["multinomial", "largest-remainder"])),
        min_patches=least,
        regroup=data.draw(st.sampled_from(["step", "epoch"])),
        gradient=data.draw(st.sampled_from(["unicast", "broadcast"])),
        k_times=data.draw(st.booleans()),
        mask_per_sample=data.draw(st.booleans()),
    )
    check_masks_partition(
        mixer,
        clients=data.draw(st.integers(1, 9)),
        patches=data.draw(st.integers(max(1, least * k), 30)),
        prefix=data.draw(st.integers(0, 2)),
        seed=data.draw(st.integers(0, 2**32)),
    )


OTHERS = st.one_of(
    st.builds(Mixup, st.integers(2, 6), ALPHAS),
    st.builds(VanillaCutMix, st.just(2), st.sampled_from([1e-3, 0.5, 1.0, 20.0])),
    st.builds(
        RandomCutout,
        st.one_of(st.none(), st.floats(0.01, 1)),
        ALPHAS,
        mask_per_sample=st.booleans(),
    ),
)


@settings(max_examples=300, deadline=None)
@given(OTHERS, st.booleans(), st.data())
def test_the_other_mixers(mixer: Mixer, shuffled: bool, data: st.DataObject) -> None:
    check_masks_partition(
        Shuffled(mixer) if shuffled else mixer,
        clients=data.draw(st.integers(1, 9)),
        patches=data.draw(st.integers(1, 30)),
        prefix=data.draw(st.integers(0, 2)),
        seed=data.draw(st.integers(0, 2**32)),
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_mixer_of_an_example(seed: int) -> None:
    check_masks_partition(block_cutmix(), patches=16 + seed, prefix=seed % 3, seed=seed)


@pytest.mark.parametrize("name", NAMES)
def test_the_mixer_of_every_strategy(name: str) -> None:
    mixer = maker(name)(Toy().upper()).mixer
    check_masks_partition(mixer)
    check_masks_partition(mixer, clients=4, patches=1, prefix=1)


def test_a_client_alone_owns_every_patch() -> None:
    check_masks_partition(NoMixing(), clients=3, patches=5, prefix=1)


class Broken(PatchCutMix):
    """Silently takes one patch from the first member of every group."""

    def mix(self, *arguments: Any) -> Sequence[Member]:
        first, *others = super().mix(*arguments)
        assert isinstance(first.share, PatchShare)
        cut = replace(first.share, stop=max(first.share.stop - 1, 0))
        return [replace(first, share=cut), *others]


def test_the_law_notices_a_patch_without_an_owner() -> None:
    with pytest.raises(AssertionError, match="patches have between 0 and 1 owners"):
        check_masks_partition(Broken(2, alpha=None), clients=2)


@dataclass(frozen=True, kw_only=True)
class Run(PatchShare):
    """As many patches in a row, from a place that is drawn for each sample."""

    name: ClassVar[str] = "run"

    def positions(self, batch: int) -> Tensor:
        starts = np.random.default_rng(self.seed).integers(self.patches, size=(batch, 1))
        return torch.from_numpy(starts + np.arange(self.start, self.stop)) % self.patches


@dataclass(frozen=True, kw_only=True)
class RunOfWholeBatches(Run):
    """The same, but no part of a batch has the places of the whole one."""

    name: ClassVar[str] = "run-of-whole-batches"

    def part(self, first: int) -> Self:
        return self


class Runs(PatchCutMix):
    """Gives every member a run."""

    kind: type[PatchShare] = Run
    shares = (Run,)

    def mix(self, *arguments: Any) -> Sequence[Member]:
        return [replace(m, share=grow(m.share, self.kind)) for m in super().mix(*arguments)]


def test_a_patch_share_of_ones_own_keeps_its_patches_in_parts() -> None:
    """From a batch's second part on, positions could be those of the class it is derived from."""
    check_masks_partition(Runs(2), patches=8, batch=4)
    check_masks_partition(Noisy(Runs(3), GaussianNoise(sigma_s=1.0, sigma_y=1.0)), batch=4)
    make = partial(SplitStrategy, mixer=Runs(2), micro_batches=4)
    check_split_equals_whole(make, Toy(batch_norm=False, dropout=0.0))


def test_the_law_notices_a_share_that_does_otherwise_in_parts() -> None:
    mixer = Runs(2)
    mixer.kind = RunOfWholeBatches
    with pytest.raises(AssertionError, match="share 'run-of-whole-batches' of client"):
        check_masks_partition(mixer)
    mixer.needs_whole_batch = True
    check_masks_partition(mixer)


def test_the_law_notices_a_client_that_is_left_out() -> None:
    class Forgetful(NoMixing):
        def plan(self, *arguments: Any) -> Plan:
            whole = super().plan(*arguments)
            return replace(whole, passes=(whole.passes[0][1:],))

    with pytest.raises(AssertionError, match=r"3 clients were grouped as \[1, 2\]"):
        check_masks_partition(Forgetful(), clients=3)


def test_the_law_notices_a_wrong_weight() -> None:
    class Heavy(Mixup):
        def mix(self, *arguments: Any) -> Sequence[Member]:
            first, *others = super().mix(*arguments)
            return [replace(first, share=replace(first.share, lam=first.share.lam / 2)), *others]

    with pytest.raises(AssertionError, match=r"the mixing ratios of a group sum to 0\.75"):
        check_masks_partition(Heavy(2, alpha=None), clients=2)


@dataclass(frozen=True)
class HalfWidth(Share):
    """Keeps the first or the second half of every patch's width."""

    name: ClassVar[str] = "half-width"

    second: bool = False

    def _half(self, width: int) -> slice:
        return slice(width // 2, width) if self.second else slice(0, width // 2)

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        half = smashed[:, :, self._half(smashed.shape[2])]
        return half.detach(), half

    def upload_shape(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        half = self._half(shape[2])
        return shape[0], shape[1], half.stop - half.start

    def place(self, mixed: Tensor, upload: Tensor) -> None:
        mixed[:, :, self._half(mixed.shape[2])] += upload

    def pick(self, gradient: Tensor) -> Tensor:
        return gradient[:, :, self._half(gradient.shape[2])]


class WidthMix(GroupMixer):
    """Each of two members keeps half of every patch's width."""

    shares = (HalfWidth,)

    def mix(
        self, clients: Sequence[int], shape: SmashedShape, rng: np.random.Generator
    ) -> Sequence[Member]:
        return [
            Member(client, HalfWidth(lam=0.5, second=bool(i))) for i, client in enumerate(clients)
        ]


def test_a_share_may_keep_a_part_of_the_width() -> None:
    """Its patches are not counted whole: such members are a partition."""
    check_masks_partition(WidthMix(), clients=4)
