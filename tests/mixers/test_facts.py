"""The facts of a mixer around another: those of the inner one, and those that its class states."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.mixers import (
    FullShare,
    InputLevel,
    Mixer,
    Mixup,
    Noisy,
    NoMixing,
    PatchCutMix,
    Plan,
    Shuffled,
    SmashedShape,
    WrappedMixer,
)
from flwr_splitmix.mixers.elsewhere import MixedElsewhere
from flwr_splitmix.mixers.facts import FACTS, MixerFacts
from flwr_splitmix.mixers.wrapper import OuterMixer
from flwr_splitmix.overriding import of_package
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.testing.toy import Toy

NOISE = GaussianNoise(sigma_s=4.0, sigma_y=1.0)


class Own(FullShare):
    """Somebody's kind of share."""

    name = "test-facts-own"


class Other(FullShare):
    """Another one."""

    name = "test-facts-other"


class Twice(WrappedMixer):
    """Somebody's mixer around another one, which changes nothing."""

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        return self.mixer.plan(members, shape, rng, order_rng)


UNUSUAL: dict[str, Any] = {
    "shares": (Own,),
    "cover": "weighted",
    "positions": "upper",
    "raw_inputs_cross": True,
    "takes_noise": False,
    "min_members": 3,
    "regroup": "epoch",
    "needs_whole_batch": True,
    "k": 4,
    "min_patches": 2,
    "k_times": True,
    "mask_per_sample": True,
}
"""A value of each fact that is not the usual one."""

OUTER: dict[type[Mixer], Callable[[Mixer], Mixer]] = {
    Twice: Twice,
    Shuffled: Shuffled,
    Noisy: lambda mixer: Noisy(mixer, NOISE),
    InputLevel: lambda mixer: InputLevel(mixer, across="clients"),
    MixedElsewhere: MixedElsewhere,
}
"""The mixers around another one."""

STATED: dict[type[Mixer], dict[str, Any]] = {
    InputLevel: {
        "cover": "partition",
        "positions": None,
        "raw_inputs_cross": True,
        "takes_noise": False,
        "needs_whole_batch": False,
        "k": 0,
        "min_patches": 0,
        "k_times": False,
        "mask_per_sample": False,
    },
    MixedElsewhere: {"cover": "partition", "takes_noise": False, "needs_whole_batch": True},
}
"""Facts that do not hold of the outer mixer as of the inner one."""

REFUSED = {(Shuffled, "positions"), (Noisy, "takes_noise")}
"""Facts of an inner mixer that another one cannot be around."""


def states(**facts: Any) -> type[Twice]:
    """Return a class of wrappers that states facts."""
    return type("States", (Twice,), facts)


def inside(**facts: Any) -> Mixer:
    """Return a mixer with facts that every other one, also elsewhere, can be around."""
    mixer = Mixup()
    for name, value in facts.items():
        setattr(mixer, name, value)
    return mixer


def below(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield the subclasses of a class, at any depth."""
    for one in kind.__subclasses__():
        yield one
        yield from below(one)


def test_every_mixer_of_the_package_around_another_is_looked_at() -> None:
    around = {
        kind
        for kind in below(Mixer)
        if of_package(kind) and "mixer" in inspect.signature(kind).parameters
    }
    bases = {OuterMixer, WrappedMixer}
    assert around - bases == OUTER.keys() - {Twice}
    assert all(issubclass(kind, OuterMixer) for kind in around)


def test_every_attribute_of_a_mixer_is_a_fact_with_an_unusual_value() -> None:
    assert {name for name in vars(MixerFacts) if not name.startswith("_")} == FACTS.keys()
    assert UNUSUAL.keys() == FACTS.keys()
    assert all(getattr(Mixer, name) != value for name, value in UNUSUAL.items())
    declared = set(inspect.get_annotations(Mixer))
    assert not declared, f"{declared} of Mixer are no facts, so a mixer around another loses them"


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("kind", OUTER)
def test_a_fact_is_that_of_the_inner_mixer_or_stated(kind: type[Mixer], name: str) -> None:
    """Elsewhere a mixer lost eight of them, among them that it is made for several clients."""
    inner = inside(**{name: UNUSUAL[name]})
    if (kind, name) in REFUSED:
        with pytest.raises(ValueError, match=r"already moves|takes no noise"):
            OUTER[kind](inner)
        return
    fact = getattr(OUTER[kind](inner), name)
    assert fact == STATED.get(kind, {}).get(name, UNUSUAL[name])


@pytest.mark.parametrize("name", FACTS)
def test_what_the_class_of_a_wrapper_states_is_not_lost(name: str) -> None:
    """An inner mixer that does not state a fact does not overwrite it."""
    assert getattr(states(**{name: UNUSUAL[name]})(NoMixing()), name) == UNUSUAL[name]
    below_it = type("Below", (states(**{name: UNUSUAL[name]}),), {})
    assert getattr(below_it(NoMixing()), name) == UNUSUAL[name]


@pytest.mark.parametrize(
    ("name", "outer", "inner", "joined"),
    [
        ("shares", (Own, Other), (Other,), (Other, Own)),
        ("cover", "partition", "weighted", "partition"),
        ("positions", None, "upper", "upper"),
        ("raw_inputs_cross", False, True, True),
        ("takes_noise", True, False, False),
        ("min_members", 2, 3, 3),
        ("min_members", 4, 3, 4),
        ("regroup", "step", "epoch", "step"),
        ("needs_whole_batch", False, True, True),
        ("k", 2, 4, 2),
        ("min_patches", 1, 2, 1),
        ("k_times", False, True, True),
        ("mask_per_sample", False, True, False),
    ],
)
def test_what_both_state_is_joined_and_what_an_object_is_given_later_holds(
    name: str, outer: Any, inner: Any, joined: Any
) -> None:
    class Later(Twice):
        def __init__(self, mixer: Mixer) -> None:
            super().__init__(mixer)
            setattr(self, name, outer)

    class Before(Twice):
        def __init__(self, mixer: Mixer) -> None:
            setattr(self, name, outer)
            super().__init__(mixer)

    mixer = inside(**{name: inner})
    assert getattr(states(**{name: outer})(mixer), name) == joined
    assert getattr(Before(mixer), name) == joined
    assert getattr(Later(mixer), name) == outer


def test_a_wrapper_that_takes_no_noise_gets_none_and_reports_no_epsilon() -> None:
    """A run would else report an epsilon without noise."""
    plain = type("Plain", (NoMixing,), {"takes_noise": False})()
    for mixer in (plain, states(takes_noise=False)(NoMixing())):
        message = f"{mixer} takes no noise: it has no labels to cover, or mixes inputs"
        with pytest.raises(ValueError, match=re.escape(message)):
            SplitStrategy(Toy().upper(), mixer=mixer, noise=NOISE)


def test_a_wrapper_made_for_more_clients_than_the_inner_mixer_says_so() -> None:
    mixer = states(min_members=4)(Mixup(k=2))
    mixer.check_clients(4)
    with pytest.raises(ValueError, match="States needs at least 4 clients in a round, got 3"):
        mixer.check_clients(3)
    with pytest.raises(ValueError, match="k is 2, but only 1 client takes part"):
        mixer.check_clients(1)


@pytest.mark.parametrize(
    ("outer", "inner", "message"),
    [("2", 1, "States: min_members is '2'"), (2, "3", "Mixup: min_members is '3'")],
)
def test_a_value_that_cannot_be_joined_is_named(outer: Any, inner: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        states(min_members=outer)(inside(min_members=inner))


@pytest.mark.parametrize("kind", OUTER)
def test_what_a_mixer_does_not_do_with_one_patch_is_said_also_around_it(kind: type[Mixer]) -> None:
    mixer = PatchCutMix(k=2, min_patches=1)
    assert OUTER[kind](mixer).without_effect(1) == mixer.without_effect(1) != ""
    assert OUTER[kind](mixer).without_effect(2) == ""
