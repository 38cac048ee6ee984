"""Mixers of smashed data, between the clients and the upper segment; one file per mixer."""

from collections.abc import Iterable, Iterator
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules

from flwr_splitmix.mixers.cutout import RandomCutout
from flwr_splitmix.mixers.frozen_edge import FrozenEdge, IdShare
from flwr_splitmix.mixers.full_share import FullShare
from flwr_splitmix.mixers.grouping import GroupMixer
from flwr_splitmix.mixers.input_level import InputLevel, InputShare
from flwr_splitmix.mixers.mask_share import MaskShare, PatchShare
from flwr_splitmix.mixers.masks import patch_order, sample_counts, sample_ratios
from flwr_splitmix.mixers.mixer import EmptyMixtureError, Mixer
from flwr_splitmix.mixers.mixture import Mixed, Source, Upload
from flwr_splitmix.mixers.mixup import Mixup, WeightedShare
from flwr_splitmix.mixers.noisy import Noisy, NoisyShare
from flwr_splitmix.mixers.none import NoMixing
from flwr_splitmix.mixers.patch_cutmix import PatchCutMix
from flwr_splitmix.mixers.plan import Group, Member, Plan, SmashedShape, each_alone
from flwr_splitmix.mixers.share import Share, share_from_wire
from flwr_splitmix.mixers.shuffled import Shuffled
from flwr_splitmix.mixers.vanilla_cutmix import BoxShare, VanillaCutMix
from flwr_splitmix.mixers.wrapper import WrappedMixer


def _kinds_of_shares() -> Iterator[type[Share]]:
    """Yield the shares defined in this package's modules; a new mixer's share needs no line here.

    Private shares never travel and are left out.
    """
    for place in sorted(iter_modules(__path__), key=lambda place: place.name):
        for name, value in vars(import_module(f"{__name__}.{place.name}")).items():
            is_defined_here = (
                isinstance(value, type) and value.__module__ == f"{__name__}.{place.name}"
            )
            if (
                is_defined_here
                and not name.startswith("_")
                and issubclass(value, Share)
                and not isabstract(value)
            ):
                yield value


SHARES: tuple[type[Share], ...] = tuple(_kinds_of_shares())
"""The kinds of shares that every client knows: those defined in this package."""


def known_shares(further: Iterable[type[Share]]) -> tuple[type[Share], ...]:
    """Return the built-in kinds of shares, and a user's.

    Raises
    ------
    TypeError
        If `further` is not a sequence of subclasses of `Share`.
    ValueError
        If a kind has no name, or that of another.
    """
    if isinstance(further, (type, str)) or not isinstance(further, Iterable):
        raise TypeError(
            f"shares must be a sequence of kinds of shares, such as (MyShare,), not {further!r}"
        )
    kinds: dict[str, type[Share]] = {kind.name: kind for kind in SHARES}
    for kind in further:
        if not (isinstance(kind, type) and issubclass(kind, Share)):
            raise TypeError(f"shares must be subclasses of Share, got {kind!r}")
        name = getattr(kind, "name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"share {kind.__name__} has no name, by which clients know it; give it one, such "
                f"as name: ClassVar[str] = {kind.__name__.lower()!r}"
            )
        if kinds.setdefault(name, kind) is not kind:
            raise ValueError(
                f"share {kind.__name__} has the name {name!r} of {kinds[name].__name__}; give it "
                "a new one"
            )
    return tuple(kinds.values())


__all__ = [
    "SHARES",
    "BoxShare",
    "EmptyMixtureError",
    "FrozenEdge",
    "FullShare",
    "Group",
    "GroupMixer",
    "IdShare",
    "InputLevel",
    "InputShare",
    "MaskShare",
    "Member",
    "Mixed",
    "Mixer",
    "Mixup",
    "NoMixing",
    "Noisy",
    "NoisyShare",
    "PatchCutMix",
    "PatchShare",
    "Plan",
    "RandomCutout",
    "Share",
    "Shuffled",
    "SmashedShape",
    "Source",
    "Upload",
    "VanillaCutMix",
    "WeightedShare",
    "WrappedMixer",
    "each_alone",
    "known_shares",
    "patch_order",
    "sample_counts",
    "sample_ratios",
    "share_from_wire",
]
