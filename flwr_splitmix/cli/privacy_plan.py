"""Turns the options of `splitmix privacy` into the plan of a run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from flwr_splitmix.words import counted

if TYPE_CHECKING:
    from flwr_splitmix.privacy import ReleasePlan
    from flwr_splitmix.privacy.events import Family

_MOST_PASSES = 10**9

MOST_PATCHES = 2**16
"""Patches of the largest sample, 256 x 256: random masks of more take minutes and gigabytes."""

MOST_CLIENTS = 10_000
"""Clients of the largest group."""

MOST_RATIOS = 10**7
"""Ratios of all members of a group that is seen as a sum, for each number of kept patches."""


class NoiseMethod(StrEnum):
    """What is released."""

    sl = "sl"
    mix = "mix"
    cutmix = "cutmix"


class ClipKind(StrEnum):
    """What is clipped."""

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


_OF_MIXING = ("k", "clients", "alpha", "kept", "trusted_mixer", "label_noise")
"""Options without a meaning where nothing is mixed."""

_OF_MASKS = ("k_times", "smashed_noise")
"""Options without a meaning where no patches are left out."""

CLIPPED = "choose --clip patch, range or sample"


def check_method_takes(method: NoiseMethod, given: Collection[str]) -> None:
    """Raise ValueError if an option for methods that mix, or have masks, was given for another."""
    for names, has, kind in (
        (_OF_MASKS, method is NoiseMethod.cutmix, "cutmix"),
        (_OF_MIXING, method is not NoiseMethod.sl, "methods that mix"),
    ):
        for name in names:
            if name in given and not has:
                raise ValueError(
                    f"--{name.replace('_', '-')} is for {kind}, and the method is {method.value}; "
                    "leave it out"
                )


def make_plan(given: Mapping[str, Any]) -> ReleasePlan:
    """Return the plan described by the options of `epsilon` and `sigma`, by name.

    Raises
    ------
    ValueError
        If a value is not allowed, or the number of passes is not given.
    """
    from flwr_splitmix.privacy import GaussianNoise, RandomMasks, Release, ReleasePlan
    from flwr_splitmix.privacy.costs import check_bound, check_drawn

    method, k = given["method"], given["k"] if given["method"] is not NoiseMethod.sl else 1
    noise = GaussianNoise(
        sigma_s=given["sigma_s"],
        sigma_y=given["sigma_y"],
        clip=given["clip"].value,
        clip_norm=given["clip_norm"],
        smashed_noise=given["smashed_noise"].value,
        label_noise=given["label_noise"].value,
        clamp_labels=not given["no_clamp"],
    )
    if noise.clip != "none":
        check_bound("--clip-norm", noise.clip_norm)
    check_drawn("--sigma-s", noise.sigma_s)
    check_drawn("--sigma-y", noise.sigma_y)
    if k < 1:
        raise ValueError(f"k is {k}; a group has at least 1 client")
    check_at_most("k", k, MOST_CLIENTS)
    check_at_most("patches", given["patches"], MOST_PATCHES)
    families: dict[NoiseMethod, Family] = {
        NoiseMethod.sl: "full",
        NoiseMethod.mix: "mixup",
        NoiseMethod.cutmix: "cutmix",
    }
    release = Release(
        noise=noise,
        patches=given["patches"],
        width=given["width"],
        family=families[method],
        seen="sum" if given["trusted_mixer"] else "alone",
        ratios=(1.0,),
    )
    kept = _kept(given, families[method], k)
    if isinstance(kept, RandomMasks):
        if release.seen == "sum":
            check_at_most("k times patches", k * release.patches, MOST_RATIOS)
    elif given["k_times"]:
        release = replace(release, times=k)
    return ReleasePlan(
        release=release,
        passes=_passes(given),
        delta=given["delta"],
        kept=kept,
        k=k,
        relation=given["relation"].value,
    )


def _passes(given: Mapping[str, Any]) -> int:
    passes = _asked_passes(given)
    check_at_most("passes", passes, _MOST_PASSES)
    return passes


def check_at_most(name: str, value: int, most: int) -> None:
    """Raise ValueError if a number is larger than any run has."""
    if value > most:
        raise ValueError(f"{name} is above {most:,}, which is beyond any run")


def _asked_passes(given: Mapping[str, Any]) -> int:
    from flwr_splitmix.privacy.run_plan import passes_of

    names = ("rounds", "steps", "records", "batch_size")
    rounds, steps, records, size = (given[name] for name in names)
    if given["passes"] is not None:
        if also := [f"--{name.replace('_', '-')}" for name in names if given[name] is not None]:
            raise ValueError(
                f"--passes and {also[0]} are given; say either --passes, or --rounds, --steps, "
                "--records and --batch-size"
            )
        return int(given["passes"])
    if None in (rounds, steps, records, size):
        raise ValueError("give --passes, or --rounds, --steps, --records and --batch-size")
    for name in names:
        if given[name] < 1:
            raise ValueError(f"{name} is {given[name]}; it must be at least 1")
    return passes_of(rounds * steps, records, size)


def _kept(given: Mapping[str, Any], family: Family, k: int) -> Any:
    from flwr_splitmix.privacy.run_plan import left_over, ratios_of

    n = given["clients"]
    if n is not None and n < k:
        raise ValueError(f"k is {k} for {counted(n, 'client')}; a group has at most all")
    if given["kept"] is not None:
        if not 0 <= given["kept"] <= 1:
            raise ValueError(
                f"kept is {given['kept']:g}; it is a share of the client's data, 0 to 1, and 1 the "
                "worst case"
            )
        if given["kept"] < 1 and left_over(n, k):
            raise ValueError(
                f"kept is {given['kept']}, but groups of {k} of {n} clients leave some over, which "
                "keep more of their data: leave --kept out, or give --kept 1"
            )
        return given["kept"]
    alpha = None if given["alpha"] == math.inf else given["alpha"]
    return ratios_of(
        family, given["patches"], k, alpha, given["delta"], clients=n, k_times=given["k_times"]
    )
