"""Turns the options of `splitmix privacy` into the plan of a run."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from flwr_splitmix.words import counted

if TYPE_CHECKING:
    from flwr_splitmix.privacy import GaussianNoise, RandomMasks, Release, ReleasePlan
    from flwr_splitmix.privacy.events import Family

_MAX_PASSES = 10**9

MAX_PATCHES = 2**16
"""Patches of the largest sample, 256 x 256: random masks of more take minutes and gigabytes."""

MAX_CLIENTS = 10_000
"""Clients of the largest group."""

MAX_RATIOS = 10**7
"""Ratios of all members of a group that is seen as a sum, for each number of kept patches."""


class NoiseMethod(StrEnum):
    """A method by its command-line name."""

    sl = "sl"
    mix = "mix"
    cutmix = "cutmix"


class ClipKind(StrEnum):
    """The object that is clipped."""

    patch = "patch"
    range = "range"
    sample = "sample"
    none = "none"


class Smashed(StrEnum):
    """The patches of CutMix that get noise."""

    kept = "kept"
    all = "all"


class Labels(StrEnum):
    """When label noise is added."""

    after = "after"
    before = "before"


class Neighbours(StrEnum):
    """How neighbouring data sets differ."""

    replaced = "replace"
    add_remove = "add-remove"


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Values of the options that `splitmix privacy epsilon` and `sigma` share, and the noise.

    Parameters
    ----------
    sigma_s, sigma_y
        Noise on smashed data and labels: an option of `epsilon`, a first value for `sigma`.
    k
        Of methods that mix; see `group_size`.
    clients, max_ratio
        None if not given: all groups are full, and masks and ratios are drawn.
    passes
        None if it follows from `rounds`, `steps`, `records` and `batch_size`; these are None
        otherwise.
    """

    sigma_s: float
    sigma_y: float
    clip_norm: float
    method: NoiseMethod
    clip: ClipKind
    patches: int
    width: int
    k: int
    clients: int | None
    k_times: bool
    alpha: float
    max_ratio: float | None
    passes: int | None
    rounds: int | None
    steps: int | None
    records: int | None
    batch_size: int | None
    delta: float
    relation: Neighbours
    smashed_noise: Smashed
    label_noise: Labels
    trusted_mixer: bool
    no_clamp: bool

    @property
    def group_size(self) -> int:
        """Clients per group: one where nothing is mixed."""
        return 1 if self.method is NoiseMethod.sl else self.k

    @property
    def family(self) -> Family:
        """The method's name in the privacy package."""
        families: dict[NoiseMethod, Family] = {
            NoiseMethod.sl: "full",
            NoiseMethod.mix: "mixup",
            NoiseMethod.cutmix: "cutmix",
        }
        return families[self.method]


_MIXING_OPTIONS = ("--k", "--clients", "--alpha", "--kept", "--trusted-mixer", "--label-noise")
"""Options without a meaning where nothing is mixed."""

_MASK_OPTIONS = ("--k-times", "--smashed-noise")
"""Options without a meaning where no patches are left out."""

CLIPPED = "choose --clip patch, range or sample"


def check_method_takes(options: PlanOptions, set_options: Collection[str]) -> None:
    """Raise ValueError if an option for methods that mix, or have masks, was given for another.

    Parameters
    ----------
    set_options
        The options that the user has set, such as "--k".
    """
    method = options.method
    for names, takes, kind in (
        (_MASK_OPTIONS, method is NoiseMethod.cutmix, "cutmix"),
        (_MIXING_OPTIONS, method is not NoiseMethod.sl, "methods that mix"),
    ):
        for name in names:
            if name in set_options and not takes:
                raise ValueError(
                    f"{name} is for {kind}, and the method is {method.value}; leave it out"
                )


def make_plan(options: PlanOptions) -> ReleasePlan:
    """Return the plan that the options describe.

    Raises
    ------
    ValueError
        If a value is not allowed, or the number of passes is not given.
    """
    from flwr_splitmix.privacy import RandomMasks, ReleasePlan

    k = options.group_size
    release = _release(options, _noise(options))
    ratios = _ratios(options)
    if isinstance(ratios, RandomMasks):
        if release.seen == "sum":
            check_at_most("k times patches", k * release.patches, MAX_RATIOS)
    elif options.k_times:
        release = replace(release, times=k)
    return ReleasePlan(
        release=release,
        passes=_passes(options),
        delta=options.delta,
        kept=ratios,
        k=k,
        relation=options.relation.value,
    )


def check_at_most(name: str, value: int, most: int) -> None:
    """Raise ValueError if a number is larger than any run has."""
    if value > most:
        raise ValueError(f"{name} is above {most:,}, which is beyond any run")


def _noise(options: PlanOptions) -> GaussianNoise:
    from flwr_splitmix.privacy import GaussianNoise
    from flwr_splitmix.privacy.costs import check_bound, check_drawn

    noise = GaussianNoise(
        sigma_s=options.sigma_s,
        sigma_y=options.sigma_y,
        clip=options.clip.value,
        clip_norm=options.clip_norm,
        smashed_noise=options.smashed_noise.value,
        label_noise=options.label_noise.value,
        clamp_labels=not options.no_clamp,
    )
    if noise.clip != "none":
        check_bound("--clip-norm", noise.clip_norm)
    check_drawn("--sigma-s", noise.sigma_s)
    check_drawn("--sigma-y", noise.sigma_y)
    return noise


def _release(options: PlanOptions, noise: GaussianNoise) -> Release:
    """Return one upload of a whole sample; what masks keep of it is up to the plan."""
    from flwr_splitmix.privacy import Release

    k = options.group_size
    if k < 1:
        raise ValueError(f"k is {k}; a group has at least 1 client")
    check_at_most("k", k, MAX_CLIENTS)
    check_at_most("patches", options.patches, MAX_PATCHES)
    return Release(
        noise=noise,
        patches=options.patches,
        width=options.width,
        family=options.family,
        seen="sum" if options.trusted_mixer else "alone",
        ratios=(1.0,),
    )


def _ratios(options: PlanOptions) -> float | RandomMasks:
    """Return a bound of a client's ratios, or how they are drawn, as `ReleasePlan.kept`."""
    from flwr_splitmix.privacy.run_plan import left_over, ratios_of

    k, n, share = options.group_size, options.clients, options.max_ratio
    if n is not None and n < k:
        raise ValueError(f"k is {k} for {counted(n, 'client')}; a group has at most all")
    if share is None:
        alpha = None if options.alpha == math.inf else options.alpha
        return ratios_of(
            options.family,
            options.patches,
            k,
            alpha,
            options.delta,
            clients=n,
            k_times=options.k_times,
        )
    if not 0 <= share <= 1:
        raise ValueError(
            f"kept is {share:g}; it is a share of the client's data, 0 to 1, and 1 the worst case"
        )
    if share < 1 and left_over(n, k):
        raise ValueError(
            f"kept is {share}, but groups of {k} of {n} clients leave some over, which "
            "keep more of their data: leave --kept out, or give --kept 1"
        )
    return share


def _passes(options: PlanOptions) -> int:
    passes = _asked_passes(options)
    check_at_most("passes", passes, _MAX_PASSES)
    return passes


def _asked_passes(options: PlanOptions) -> int:
    """Return `passes`, or the number computed from rounds, steps, records and batch size."""
    from flwr_splitmix.privacy.run_plan import passes_of

    instead = {
        "rounds": options.rounds,
        "steps": options.steps,
        "records": options.records,
        "batch_size": options.batch_size,
    }
    counts = {name: value for name, value in instead.items() if value is not None}
    if options.passes is not None:
        if counts:
            name = next(iter(counts))
            raise ValueError(
                f"--passes and --{name.replace('_', '-')} are given; use either --passes, or "
                "--rounds, --steps, --records and --batch-size"
            )
        return options.passes
    if len(counts) < len(instead):
        raise ValueError("give --passes, or --rounds, --steps, --records and --batch-size")
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    return passes_of(counts["rounds"] * counts["steps"], counts["records"], counts["batch_size"])
