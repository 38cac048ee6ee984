"""The base classes of mixers around another one, to which they leave what they do not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.mixers.facts import adopt_facts
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.mixture import Mixed, Upload
from flwr_splitmix.mixers.plan import Plan
from flwr_splitmix.values import check_kind


class OuterMixer(Mixer):
    """Base class of mixers around another one, which have its facts (`MixerFacts`) and limits.

    Parameters
    ----------
    mixer
        The inner mixer.
    **instead
        By name, facts that do not hold as of the inner mixer.

    Raises
    ------
    TypeError
        If `mixer` is not a mixer.
    """

    def __init__(self, mixer: Mixer, **instead: Any) -> None:
        check_kind("mixer", mixer, Mixer, "a Mixer, such as PatchCutMix(k=2)")
        self.mixer = mixer
        adopt_facts(self, mixer, **instead)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.mixer})"

    def check_clients(self, n: int) -> None:
        """Ask the inner mixer, and check its own `min_members`."""
        self.mixer.check_clients(n)
        super().check_clients(n)

    def without_effect(self, patches: int) -> str:
        """Ask the inner mixer."""
        return self.mixer.without_effect(patches)

    def group_within(self, classes: Mapping[int, int]) -> None:
        """Have the inner mixer do the same."""
        self.mixer.group_within(classes)


class WrappedMixer(OuterMixer):
    """Base class of mixers that change the plan or the mixture of another one."""

    def merge(
        self,
        uploads: Mapping[int, Upload],
        plan: Plan,
        *,
        num_classes: int,
        device: torch.device | None = None,
    ) -> Mixed:
        """Mix as the inner mixer does."""
        return self.mixer.merge(uploads, plan, num_classes=num_classes, device=device)

    def split(self, gradient: Tensor, mixed: Mixed, plan: Plan) -> dict[int, list[Tensor | None]]:
        """Split as the inner mixer does."""
        return self.mixer.split(gradient, mixed, plan)


def layers(mixer: Mixer) -> Iterator[Mixer]:
    """Yield a mixer and, as long as each is a wrapper, the one inside."""
    yield mixer
    while isinstance(mixer, WrappedMixer):
        mixer = mixer.mixer
        yield mixer


def innermost(mixer: Mixer) -> Mixer:
    """Return the innermost mixer, inside all wrappers."""
    *_, last = layers(mixer)
    return last


def all_inside(mixer: Mixer) -> Iterator[Mixer]:
    """Yield a mixer, the one that is its attribute `mixer`, and so on.

    These are the layers, and what is inside a mixer that is not a wrapper: `InputLevel` applies its
    inner one to raw inputs, and with `MixedElsewhere` a third party runs it.
    """
    inner: object = mixer
    while isinstance(inner, Mixer):
        yield inner
        inner = getattr(inner, "mixer", None)
