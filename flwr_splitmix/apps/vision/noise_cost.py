"""What the noise of a vision run is going to cost: its planned epsilon, or why there is none."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flwr_splitmix.apps.report import Report
from flwr_splitmix.apps.run_config import ConfigError
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.first_round import first_plan, in_a_round
from flwr_splitmix.mixers import Mixer, Mixup, PatchCutMix
from flwr_splitmix.mixers.accounting import release_of
from flwr_splitmix.mixers.grouping import GroupMixer
from flwr_splitmix.mixers.wrapper import WrappedMixer
from flwr_splitmix.privacy import RandomMasks, Release, ReleasePlan
from flwr_splitmix.privacy.calibration import MIXUP_RATIOS
from flwr_splitmix.privacy.events import OUTSIDE
from flwr_splitmix.privacy.masks import least_ratio
from flwr_splitmix.privacy.run_plan import left_over, passes_of, ratio_in_words, ratios_of
from flwr_splitmix.privacy.statement import in_words
from flwr_splitmix.segments import SplitModel
from flwr_splitmix.segments.across_batch import needs_whole_batch
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.words import counted


def remark_noise(
    config: VisionConfig,
    segments: SplitModel,
    strategy: SplitStrategy,
    sizes: Sequence[int],
    report: Report,
) -> None:
    """Remark what a run with noise will spend, and when its `max-epsilon` is reached.

    Parameters
    ----------
    strategy
        The run's, without a model.
    sizes
        Number of training images of each client; empty if it is not known.

    Raises
    ------
    ConfigError
        If not even one batch fits into `max-epsilon`, so that no client would send anything.
    """
    if config.noise is None:
        return
    if gaps := _gaps(config, segments, report):
        why, remedies = zip(*gaps, strict=True)
        report.remarks.append(
            f"this run has no epsilon: {'; '.join(why)}; it would have one with "
            f"{' and '.join(remedies)}"
        )
        return
    sends = _Sends.of(config, segments, strategy)
    _check_one_upload(config, sends)
    have = _Images.of(config, strategy, sizes, report)
    if have is None:
        report.remarks.append(
            "this run's epsilon depends on how many images each client has, and so on the number "
            "of SuperNodes: `splitmix check --nodes` says it"
        )
        return
    _remark_epsilon(config, sends, have, report)
    if config.max_epsilon:
        _remark_budget(config, sends, have, report)


@dataclass(frozen=True)
class _Sends:
    """What a client sends in a step; `release` is as seen by the server, in a full group."""

    release: Release
    mixer: Mixer
    learns: bool

    @classmethod
    def of(cls, config: VisionConfig, segments: SplitModel, strategy: SplitStrategy) -> _Sends:
        mixer = strategy.mixer
        while isinstance(mixer, WrappedMixer):
            mixer = mixer.mixer
        geometry = segments.lower.geometry
        members = mixer.k if isinstance(mixer, GroupMixer) else 1
        share = first_plan(strategy, config, geometry, members).shares(0)[0]
        assert share is not None
        release = release_of(share, geometry.prefix + geometry.patches, geometry.width)
        # Of uploads that are rounded before they are added, each is charged as seen alone.
        rounded = config.link_via and config.wire_dtype != "keep"
        summed = (config.trusted_mixer or config.link_via) and not rounded
        # The ratios of the masks are the plan's.
        release = replace(
            release, ratio=1.0, seen="sum" if summed else "alone", ratios=(1.0,) if summed else ()
        )
        return cls(release, mixer, share.learns)

    @property
    def k(self) -> int:
        """Members of a full group."""
        return self.mixer.k if isinstance(self.mixer, GroupMixer) else 1

    @property
    def times(self) -> int:
        """How often a full group's batch is sent."""
        return self.k if getattr(self.mixer, "k_times", False) else 1

    @property
    def any_ratio(self) -> bool:
        """Whether nothing is known of how the ratios are distributed."""
        if isinstance(self.mixer, PatchCutMix):
            usual = self.mixer.rounding == "multinomial" and not self.mixer.min_patches
            return self.mixer.alpha is not None and not usual
        return not isinstance(self.mixer, Mixup)

    def plan(
        self, config: VisionConfig, passes: int, *, clients: int | None, batches: int = 1
    ) -> ReleasePlan:
        """Return the plan of so many passes, of `batches` each."""
        release, k = self.release, self.k
        if release.family == "full":
            return ReleasePlan(
                release=release, passes=passes, delta=config.delta, relation=config.relation
            )
        kept: float | RandomMasks = 1.0
        # The same clients are left over in many steps.
        fixed = left_over(clients, k) and (config.grouping == "speed" or config.regroup == "epoch")
        if self.any_ratio or fixed:
            k = 1 if left_over(clients, k) else k  # who is alone sends everything
            release = replace(release, times=self.times)
        else:
            assert isinstance(self.mixer, (PatchCutMix, Mixup))
            kept = ratios_of(
                release.family, release.patches, k, self.mixer.alpha, config.delta,
                clients=clients, k_times=self.times > 1, batches=batches,
            )  # fmt: skip
            if not isinstance(kept, RandomMasks):
                release = replace(release, times=self.times)
        return ReleasePlan(
            release=release, passes=passes, delta=config.delta, kept=kept, k=k,
            relation=config.relation,
        )  # fmt: skip

    def own(self) -> _Sends:
        """Return the view of a client's own ledger: each upload is seen alone."""
        return replace(self, release=replace(self.release, seen="alone", ratios=()))

    def one_upload(self, config: VisionConfig) -> ReleasePlan:
        """Return the plan of one upload that keeps as little as masks are likely to leave."""
        mixer = self.mixer
        least = 1.0
        if self.release.family != "full":
            steps = self.release.patches if self.release.family == "cutmix" else MIXUP_RATIOS
            alpha = getattr(mixer, "alpha", None)
            if self.any_ratio:
                least = max(1, getattr(mixer, "min_patches", 0)) / steps
            else:
                least = least_ratio(steps, self.k, alpha)
        return ReleasePlan(
            release=self.own().release, passes=1, delta=config.delta, kept=least, k=self.k,
            relation=config.relation,
        )  # fmt: skip


@dataclass(frozen=True)
class _Images:
    """How many images the client has that is charged most, and the steps of a round.

    `clients` is the number of clients in a step, None if it is not known; `equal` says whether all
    have as many images.
    """

    images: int
    equal: bool
    steps: int
    clients: int | None

    @classmethod
    def of(
        cls, config: VisionConfig, strategy: SplitStrategy, sizes: Sequence[int], report: Report
    ) -> _Images | None:
        having = [size for size in sizes if size]
        clients = None
        if having:
            clients = min(in_a_round(strategy, report.nodes), len(having))
        elif config.samples_per_client:
            having = [config.samples_per_client]
        else:
            return None
        epoch = max(1, round(sum(size // config.batch_size for size in having) / len(having)))
        steps = config.steps_per_round or epoch * config.epochs_per_round
        return cls(min(having), len(set(having)) == 1, steps, clients)

    def __str__(self) -> str:
        images = counted(self.images, "image")
        return f"a client's {images}" if self.equal else f"the {images} of the client with fewest"


def _gaps(config: VisionConfig, segments: SplitModel, report: Report) -> list[tuple[str, str]]:
    """Return why a run has no epsilon, each with what would give one."""
    assert config.noise is not None
    known = {
        "clip": ("clip is 'none', so nothing bounds the smashed data",
                 "clip 'patch', 'range' or 'sample'"),
        "sigma_s": ("sigma-s is 0.0, so the smashed data get no noise", "sigma-s above 0"),
        "sigma_y": ("sigma-y is 0.0, so the labels get no noise", "sigma-y above 0"),
    }  # fmt: skip
    gaps = [known[gap] for gap in config.noise.gaps]
    if config.evaluation_kind == "federated":
        central = "'central', " if config.averages else ""
        gaps.append((
            "evaluation is 'federated', which sends each client's own test images without noise",
            f"evaluation {central}'benchmark' or 'none'",
        ))  # fmt: skip
    if layer := needs_whole_batch(segments.lower):
        gaps.append((
            f"the lower segment of {config.model} has {layer}, through which an image moves its "
            "whole batch",
            f"a model without {layer} before the cut",
        ))  # fmt: skip
    return gaps


def _check_one_upload(config: VisionConfig, sends: _Sends) -> None:
    """Raise ConfigError if not even one upload fits into `max-epsilon`."""
    limit = config.max_epsilon
    if not limit or (cost := sends.one_upload(config).epsilon()) <= limit:
        return
    said = f"at least epsilon {cost:.4g}" if math.isfinite(cost) else "more than any epsilon"
    raise ConfigError(
        f"run-config: max-epsilon is {limit:g}, but with sigma-s {config.sigma_s:g} and sigma-y "
        f"{config.sigma_y:g} a client's first batch costs {said}, so no client ever "
        "sends one; larger sigma-s and sigma-y, a smaller clip-norm, or a larger max-epsilon "
        "lets them train"
    )


def _remark_epsilon(config: VisionConfig, sends: _Sends, have: _Images, report: Report) -> None:
    total = have.steps * config.num_server_rounds
    if have.images < config.batch_size:  # in a server's ledger each may consist of one image
        plan = sends.plan(config, total, clients=have.clients)
        times = config.batch_size * plan.release.times
        plan = replace(plan, release=replace(plan.release, times=times))
        assumed = [f"{counted(total, 'batch')} with replacement of {have}, any of one image only"]
    else:
        passes = passes_of(total, have.images, config.batch_size)
        batches = min(have.images // config.batch_size, total)
        plan = sends.plan(config, passes, clients=have.clients, batches=batches)
        assumed = [f"{counted(passes, 'pass')} over {have}"]
    epsilon = plan.epsilon()
    if math.isinf(epsilon):
        report.remarks.append(
            "this run has no epsilon: its noise is below the resolution of float32 next to what "
            "it should hide; it would have one with larger sigma-s and sigma-y"
        )
        return
    if config.fraction_train < 1:
        assumed.append("a client in every round")
    if plan.release.family != "full":
        rest = left_over(have.clients, sends.k)
        groups = f"groups of k = {sends.k}"
        groups = (
            f"{groups} of {have.clients} clients, {rest} left over" if rest else f"full {groups}"
        )
        assumed += [groups, f"ratio {ratio_in_words(plan)}"]
        if plan.release.seen == "sum":
            assumed.append("only sums seen")
    covers = {
        "gradients": sends.learns,
        "lower-segments": config.averages,
        "training": sends.learns,
    }
    outside = [OUTSIDE[channel] for channel, happens in covers.items() if happens]
    said = in_words(epsilon, config.delta, config.relation, (), outside)
    report.remarks.append(f"planned privacy: {said}. Assumed: {'; '.join(assumed)}")


def _remark_budget(config: VisionConfig, sends: _Sends, have: _Images, report: Report) -> None:
    """Remark in which round clients reach `max-epsilon` by their own ledgers, if they do."""
    own = sends.own()
    # Drawn with replacement, an image is on average in as many batches.
    a_pass = have.images // config.batch_size or have.images / config.batch_size

    def plan(rounds: int) -> ReleasePlan:
        return own.plan(config, math.ceil(rounds * have.steps / a_pass), clients=have.clients)

    rounds, limit = config.num_server_rounds, config.max_epsilon
    over = 1 + bisect_right(range(1, rounds + 1), limit, key=lambda n: plan(n).epsilon())
    if over > rounds:
        return
    report.remarks.append(
        f"max-epsilon {limit:g} ends this earlier: a client reaches it in about round {over} of "
        f"{rounds}, and then sends nothing more{_enough(plan(rounds), limit)}"
    )


def _enough(plan: ReleasePlan, limit: float) -> str:
    """Return the noise with which a plan keeps to a limit, as a clause."""
    try:
        noise = plan.noise_for(limit)
    except ValueError:  # so low a limit that no noise is shown to keep to it
        return ""
    return f"; it would last with sigma-s {noise.sigma_s:.3g} and sigma-y {noise.sigma_y:.3g}"
