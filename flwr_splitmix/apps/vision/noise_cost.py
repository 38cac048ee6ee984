"""The planned cost of a vision run's noise: its epsilon, or why there is none."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from flwr_splitmix.apps.checking.planned_run import PlannedRun, Workload
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.noisy_uploads import NoisyUploads
from flwr_splitmix.privacy import ReleasePlan
from flwr_splitmix.privacy.events import OUTSIDE
from flwr_splitmix.privacy.run_plan import left_over, ratio_in_words
from flwr_splitmix.privacy.statement import in_words
from flwr_splitmix.segments import SplitModel
from flwr_splitmix.segments.across_batch import needs_whole_batch
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.words import counted, epsilon_text, rounded_up


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
    if gaps := _gaps(config, segments):
        why, remedies = zip(*gaps, strict=True)
        report.remarks.append(
            f"this run has no epsilon: {'; '.join(why)}; it would have one with "
            f"{' and '.join(remedies)}"
        )
        return
    uploads = NoisyUploads.of(config, segments, strategy)
    _check_one_upload(config, uploads)
    # Without the number of nodes, one client stands for all.
    sizes_known = any(sizes)
    if not sizes_known and not config.samples_per_client:
        report.remarks.append(
            "this run's epsilon depends on how many images each client has, and so on the number "
            "of SuperNodes: `splitmix check --nodes` reports it"
        )
        return
    sizes = sizes if sizes_known else [config.samples_per_client]
    run = PlannedRun.of(config, sizes, strategy.min_nodes, evaluates=False)
    numbers = run.at_most.together if sizes_known else ()
    over = _round_over(config, uploads, run, numbers)
    _remark_epsilon(config, uploads, run, numbers, report, shrinks=over is not None)
    if over is not None:
        report.remarks.append(over)


@dataclass(frozen=True)
class _Spent:
    """The spending of the client that spends most, by the server's ledger that `plan` follows."""

    plan: ReleasePlan
    images: int
    batches: int

    @cached_property
    def epsilon(self) -> float:
        """Epsilon at the run's delta."""
        return self.plan.epsilon()

    def statement(self, whose: str) -> str:
        """Return what is charged; `whose` has a place for the number of images."""
        over = whose.format(counted(self.images, "image"))
        if self.batches:
            return f"{counted(self.plan.passes, 'pass')} over {over}"
        batches = counted(self.plan.passes, "batch")
        return f"{batches} with replacement of {over}, any of one image only"


def _most_spent(
    config: VisionConfig,
    uploads: NoisyUploads,
    run: PlannedRun,
    steps: Sequence[int],
    numbers: Collection[int],
) -> _Spent:
    """Return what the client spends that spends most.

    Parameters
    ----------
    steps
        Of each client, in the whole run.
    numbers
        How many clients a step may have; empty if that is not known.
    """
    size = config.batch_size
    spent: list[_Spent] = []
    worked = [
        (images, step_count)
        for images, step_count in zip(run.sizes, steps, strict=True)
        if step_count
    ]
    if few := [(step_count, images) for images, step_count in worked if images < size]:
        step_count, images = max(few)  # in a server's ledger each batch may consist of one image
        plan = uploads.plan(config, step_count, clients=numbers)
        times = size * plan.release.times
        plan = replace(plan, release=replace(plan.release, times=times))
        spent.append(_Spent(plan, images, 0))
    charged = {
        (-(-step_count // (images // size)), min(images // size, step_count), images)
        for images, step_count in worked
        if images >= size
    }
    most = 0
    for passes, batches, images in sorted(charged, reverse=True):
        if batches > most:  # others have no more passes and no more batches in one
            most = batches
            plan = uploads.plan(config, passes, clients=numbers, batches=batches)
            spent.append(_Spent(plan, images, batches))
    return max(spent, key=lambda each: each.epsilon)


def _gaps(config: VisionConfig, segments: SplitModel) -> list[tuple[str, str]]:
    """Return the reasons for which a run has no epsilon, each with its remedy."""
    assert config.noise is not None
    explanations = {
        "clip": ("clip is 'none', so nothing bounds the smashed data",
                 "clip 'patch', 'range' or 'sample'"),
        "sigma_s": ("sigma-s is 0.0, so the smashed data get no noise", "sigma-s above 0"),
        "sigma_y": ("sigma-y is 0.0, so the labels get no noise", "sigma-y above 0"),
    }  # fmt: skip
    gaps = [explanations[gap] for gap in config.noise.gaps]
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


def _check_one_upload(config: VisionConfig, uploads: NoisyUploads) -> None:
    """Raise ConfigError if not even one upload fits into `max-epsilon`."""
    limit = config.max_epsilon
    if not limit or (cost := uploads.one_upload(config).epsilon()) <= limit:
        return
    price = f"epsilon {epsilon_text(cost)}" if math.isfinite(cost) else "more than any epsilon"
    raise ConfigError(
        f"run-config: max-epsilon is {limit:g}, but with sigma-s {config.sigma_s:g} and sigma-y "
        f"{config.sigma_y:g} a client's first batch costs {price}, so no client ever "
        "sends one; larger sigma-s and sigma-y, a smaller clip-norm, or a larger max-epsilon "
        "lets them train"
    )


def _remark_epsilon(
    config: VisionConfig,
    uploads: NoisyUploads,
    run: PlannedRun,
    numbers: Collection[int],
    report: Report,
    *,
    shrinks: bool,
) -> None:
    """Remark the planned epsilon; `shrinks` says whether clients end before the run does."""
    if numbers and (shrinks or config.pace.skips):
        numbers = range(min(run.min_nodes, *numbers), max(numbers) + 1)

    def most_spent(work: Workload) -> _Spent:
        return _most_spent(config, uploads, run, work.steps.tolist(), numbers)

    most = most_spent(run.at_most)
    if math.isinf(most.epsilon):
        report.remarks.append(
            "this run has no epsilon: its noise is below the resolution of float32 next to what "
            "it should hide; it would have one with larger sigma-s and sigma-y"
        )
        return
    drawn = None if run.drawn is None else most_spent(run.drawn)
    spent = drawn or most
    equal = len({size for size in run.sizes if size}) == 1
    always = "in every round" + ("" if equal else ", with those that have most")
    whose = "a client's {}" if equal else "the {} of the client that spends most"
    assumed = [spent.statement(whose)]
    bound = None
    if drawn is not None and drawn.epsilon < most.epsilon:
        bound = most.epsilon
        assumed = [
            f"{assumed[0]}, as seed {config.seed} draws the clients, and at most "
            f"{most.statement('{}')}, if one is {always}"
        ]
    elif drawn is None and config.fraction_train < 1:
        assumed.append(f"a client {always}")
    if (plan := spent.plan).release.family != "full":
        assumed += [_groups(uploads.k, uploads.asked(numbers)), f"ratio {ratio_in_words(plan)}"]
        if plan.release.seen == "sum":
            assumed.append("only sums seen")
    covers = {
        "gradients": uploads.learns,
        "lower-segments": config.averages,
        "training": uploads.learns,
    }
    outside = [OUTSIDE[channel] for channel, happens in covers.items() if happens]
    statement = in_words(spent.epsilon, config.delta, config.relation, (), outside, most=bound)
    report.remarks.append(f"planned privacy: {statement}. Assumed: {'; '.join(assumed)}")


def _groups(k: int, numbers: Collection[int]) -> str:
    if not (rest := left_over(numbers, k)):
        return f"full groups of k = {k}"
    if len(numbers) == 1:
        return f"groups of k = {k} of {max(numbers)} clients, {rest} left over"
    return f"groups of k = {k} of {min(numbers)} to {max(numbers)} clients, some left over"


def _round_over(
    config: VisionConfig, uploads: NoisyUploads, run: PlannedRun, numbers: Collection[int]
) -> str | None:
    """Say in which round a client reaches `max-epsilon` by its own ledger, if one does."""
    if not (limit := config.max_epsilon):
        return None
    own_uploads = uploads.own()

    def plan(passes: int) -> ReleasePlan:
        return own_uploads.plan(config, passes, clients=numbers)

    # Drawn with replacement, an image is on average in as many batches.
    sizes = np.asarray(run.sizes)
    few = sizes < config.batch_size
    batches = np.where(few, sizes / config.batch_size, sizes // config.batch_size)
    steps = (run.drawn or run.at_most).steps[sizes > 0]
    passes = math.ceil((steps / batches[sizes > 0]).max())
    lasts = bisect_right(range(1, passes + 1), limit, key=lambda each: plan(each).epsilon())
    over = run.first_round_above(lasts * batches)
    if over is None:
        return None
    return (
        f"max-epsilon {limit:g} ends this earlier: a client reaches it in about round {over} of "
        f"{run.rounds}, and then sends nothing more{_enough(plan(passes), limit)}"
    )


def _enough(plan: ReleasePlan, limit: float) -> str:
    """Return the noise with which a plan keeps to a limit, as a clause."""
    try:
        noise = plan.noise_for(limit)
    except ValueError:  # so low a limit that no noise is shown to keep to it
        return ""
    sigma_s, sigma_y = (rounded_up(sigma, 3) for sigma in (noise.sigma_s, noise.sigma_y))
    return f"; it would last with sigma-s {sigma_s} and sigma-y {sigma_y}"
