"""Uploads of a client in a step of a vision run with noise, and plans of their cost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

from flwr_splitmix.accounting.uploads import release_of
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.first_round import first_plan
from flwr_splitmix.mixers import Mixer, Mixup, PatchCutMix
from flwr_splitmix.mixers.grouping import GroupMixer
from flwr_splitmix.mixers.wrapper import innermost
from flwr_splitmix.privacy import RandomMasks, Release, ReleasePlan
from flwr_splitmix.privacy.calibration import MIXUP_RATIOS
from flwr_splitmix.privacy.masks import least_ratio
from flwr_splitmix.privacy.run_plan import left_over, ratios_of
from flwr_splitmix.segments import SplitModel
from flwr_splitmix.strategies import SplitStrategy


@dataclass(frozen=True)
class NoisyUploads:
    """A client's upload in a step; `release` is as seen by the server, in a full group."""

    release: Release
    mixer: Mixer
    learns: bool

    @classmethod
    def of(cls, config: VisionConfig, segments: SplitModel, strategy: SplitStrategy) -> Self:
        """Return what a configuration makes a client send, by a trial plan."""
        mixer = innermost(strategy.mixer)
        geometry = segments.lower.geometry
        share = first_plan(strategy, config, geometry, mixer.k or 1).shares(0)[0]
        assert share is not None
        release = release_of(share, geometry.prefix + geometry.patches, geometry.width)
        # Of uploads that are rounded before they are added, each is charged as seen alone, and so
        # is one of a group from which the others may be left out as too late. A third-party mixer
        # adds up no rounded ones.
        trusted = config.trusted_mixer and config.wire_dtype == "keep"
        summed = (trusted or config.link_via) and not config.pace.skips
        # The ratios of the masks are the plan's.
        release = replace(
            release, ratio=1.0, seen="sum" if summed else "alone", ratios=(1.0,) if summed else ()
        )
        return cls(release, mixer, share.learns)

    @property
    def k(self) -> int:
        """Members of a full group."""
        return self.mixer.k or 1

    @property
    def times(self) -> int:
        """How often a full group's batch is sent."""
        return self.k if self.mixer.k_times else 1

    @property
    def any_ratio(self) -> bool:
        """Whether nothing is known of how the ratios are distributed."""
        if isinstance(self.mixer, PatchCutMix):
            usual = self.mixer.rounding == "multinomial" and not self.mixer.min_patches
            return self.mixer.alpha is not None and not usual
        return not isinstance(self.mixer, Mixup)

    def plan(
        self, config: VisionConfig, passes: int, *, clients: Collection[int], batches: int = 1
    ) -> ReleasePlan:
        """Return the plan of so many passes, of `batches` each.

        Parameters
        ----------
        clients
            How many clients a step may have; empty if that is not known, for full groups.
        """
        release, k = self.release, self.k
        clients = self.asked(clients)
        if release.family == "full":
            return ReleasePlan(
                release=release, passes=passes, delta=config.delta, relation=config.relation
            )
        kept_ratios: float | RandomMasks = 1.0
        # The same clients are left over in many steps.
        fixed = left_over(clients, k) and (config.grouping == "speed" or config.regroup == "epoch")
        if self.any_ratio or fixed:
            k = 1 if left_over(clients, k) else k  # a client alone sends everything
            release = replace(release, times=self.times)
        else:
            assert isinstance(self.mixer, (PatchCutMix, Mixup))
            kept_ratios = ratios_of(
                release.family, release.patches, k, self.mixer.alpha, config.delta,
                clients=clients or None, k_times=self.times > 1, batches=batches,
            )  # fmt: skip
            if not isinstance(kept_ratios, RandomMasks):
                release = replace(release, times=self.times)
        return ReleasePlan(
            release=release, passes=passes, delta=config.delta, kept=kept_ratios, k=k,
            relation=config.relation,
        )  # fmt: skip

    def asked(self, clients: Collection[int]) -> Collection[int]:
        """Return how many clients send something in a step, of each number that it may have."""
        if not isinstance(self.mixer, GroupMixer):
            return clients
        return {self.mixer.asked(number) for number in clients}

    def own(self) -> Self:
        """Return the view of a client's own ledger: each upload is seen alone."""
        return replace(self, release=replace(self.release, seen="alone", ratios=()))

    def one_upload(self, config: VisionConfig) -> ReleasePlan:
        """Return the plan of one upload that keeps as little as masks are likely to leave."""
        mixer = self.mixer
        least = 1.0
        if self.release.family != "full":
            steps = self.release.patches if self.release.family == "cutmix" else MIXUP_RATIOS
            if self.any_ratio:
                least = max(1, mixer.min_patches) / steps
            else:
                assert isinstance(mixer, (PatchCutMix, Mixup))
                least = least_ratio(steps, self.k, mixer.alpha)
        return ReleasePlan(
            release=self.own().release, passes=1, delta=config.delta, kept=least, k=self.k,
            relation=config.relation,
        )  # fmt: skip
