"""Mixers as plain values: which ones a third party can run, and how it is told of one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.mixup import Mixup
from flwr_splitmix.mixers.noisy import Noisy
from flwr_splitmix.mixers.patch_cutmix import PatchCutMix
from flwr_splitmix.mixers.plan import SmashedShape
from flwr_splitmix.privacy.noise import GaussianNoise

KINDS: dict[str, type[Mixer]] = {kind.__name__: kind for kind in (PatchCutMix, Mixup)}
"""The mixers that a third party can run."""


def cannot_mix_elsewhere(reason: str, *, or_here: bool = True) -> ValueError:
    """Return the error that something excludes a third-party mixer.

    Parameters
    ----------
    reason
        Why, and a remedy.
    or_here
        Whether mixing in the ServerApp is named as another remedy.
    """
    remedy = ", or mix in the ServerApp (link-via '')" if or_here else ""
    return ValueError(f"a third party mixes (link-via), but {reason}{remedy}")


def describe(mixer: Mixer) -> dict[str, Any]:
    """Return a mixer as plain values: its class name as "mixer", and its constructor's arguments.

    If its clients add noise, "noise" holds the noise's values by name.

    Raises
    ------
    ValueError
        If a third party cannot run this mixer, or one upload could be a whole mixture with it;
        the message names the key and the remedy.
    """
    if isinstance(mixer, Noisy):
        return {**describe(mixer.mixer), "noise": mixer.noise.to_plain()}
    name = type(mixer).__name__
    if KINDS.get(name) is not type(mixer):
        raise cannot_mix_elsewhere(
            f"a mixer elsewhere cannot be {mixer}; use {' or '.join(KINDS)} (strategies CutMixSL "
            "and MixupSL, with or without noise)"
        )
    options = {name: getattr(mixer, name) for name in inspect.signature(type(mixer)).parameters}
    check_hides(mixer)
    return {"mixer": name, **options}


def check_hides(mixer: Mixer) -> None:
    """Raise ValueError if a member's upload could be a whole mixture, or follow from several."""
    if not isinstance(mixer, PatchCutMix):
        return
    if not mixer.min_patches:
        raise cannot_mix_elsewhere(
            "min_patches is 0: a member of a group may then keep all patches, and its upload "
            "would be the mixture; set min_patches to at least 1",
            or_here=False,
        )
    if mixer.k_times:
        raise cannot_mix_elsewhere(
            "with k_times a group's k mixtures together hold every patch of each member; leave "
            "k_times out"
        )


def check_adds_nothing(mixer: Mixer, prefix: int, wire_dtype: str) -> None:
    """Raise ValueError if a mixer adds up uploads, which the wire rounds.

    A sum of whole multiples of two scales (int8, int4) can be taken apart into both; so can one of
    floats with short mantissas where one is much the larger: with bfloat16, 256 times.

    Parameters
    ----------
    mixer
        One that `describe` allows.
    prefix
        Number of prefix tokens, which are added up.
    wire_dtype
        Format of the uploads, which rounds them.
    """
    k = mixer.k or 1
    shape = SmashedShape(1, k * max(1, mixer.min_patches), 1, prefix, classes=2)
    if mixer.plan(range(k), shape, np.random.default_rng(0)).sums:
        raise cannot_mix_elsewhere(
            f"wire_dtype is {wire_dtype!r}, and this mixer adds uploads up: a sum of rounded "
            "numbers can be taken apart into the single ones; set wire_dtype to 'keep' "
            "(wire_dtype_down may be any)"
        )


def mixer_of(description: Mapping[str, Any]) -> Mixer:
    """Return the mixer that `describe` described: one of `KINDS`, with or without noise.

    Raises
    ------
    ValueError
        If the kind is not in `KINDS`, an option or the noise is unknown or out of range, or
        `check_hides` rejects the mixer.
    """
    options = dict(description)
    noise = _noise_of(options.pop("noise")) if "noise" in options else None
    kind = KINDS.get(str(options.pop("mixer", None)))
    if kind is None:
        raise ValueError(f"unknown mixer; available: {', '.join(KINDS)}")
    parameters = inspect.signature(kind).parameters
    if not all(
        name in parameters and _fits(value, parameters[name].default)
        for name, value in options.items()
    ):
        raise ValueError(f"{kind.__name__} has other options, or values of other types")
    mixer = kind(**options)
    check_hides(mixer)
    return mixer if noise is None else Noisy(mixer, noise)


def _noise_of(values: Any) -> GaussianNoise:
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise ValueError("noise must be a dictionary of its values by name")
    return GaussianNoise.from_plain(values)


def _fits(value: Any, default: Any) -> bool:
    """Return whether a value has the type of an option; alpha may be any number, or None."""
    if isinstance(default, float):
        return value is None or type(value) in (int, float)
    return type(value) is type(default)
