"""The facts that a mixer states of itself: allowed values, and what holds with a mixer inside."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from flwr_splitmix.mixers.share import Share
from flwr_splitmix.values import check_choice, check_truth, whole_number

Cover = Literal["partition", "weighted", "partial"]
Regroup = Literal["step", "epoch"]


@dataclass(frozen=True)
class Fact:
    """The type and rules of an attribute by which mixers state a fact.

    Parameters
    ----------
    check
        Raises ValueError or TypeError for a value that is not allowed; called with the name by
        which the message calls it, and the value.
    joined
        Returns what holds of a mixer around another if both state something; called with the
        statements of the outer and of the inner one.
    """

    check: Callable[[str, Any], object]
    joined: Callable[[Any, Any], Any]


def _outer(outer: Any, inner: Any) -> Any:
    return outer


def _either(outer: Any, inner: Any) -> Any:
    return outer or inner


def _both(outer: Any, inner: Any) -> Any:
    return outer and inner


def _all(outer: Collection[Any], inner: Collection[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys((*inner, *outer)))


def _check_shares(name: str, value: object) -> None:
    if not isinstance(value, Collection) or not all(
        isinstance(kind, type) and issubclass(kind, Share) for kind in value
    ):
        raise TypeError(f"{name} is {value!r:.80}; expected a tuple of classes of Share")


def _check_positions(name: str, value: object) -> None:
    if value not in (None, "upper"):
        raise ValueError(f"{name} is {value!r}; it must be None or 'upper'")


_COUNT = partial(whole_number, least=0)
_COVER = partial(check_choice, allowed=get_args(Cover))
_REGROUP = partial(check_choice, allowed=get_args(Regroup))


class MixerFacts:
    """A mixer's facts for the rest of the package, as attributes of its class or its own.

    A mixer around another has the facts of the inner one. If its class states one, too, both are
    joined, on the side of caution: by the larger number for `min_members`, by "or" for `positions`,
    `raw_inputs_cross`, `needs_whole_batch` and `k_times`, by "and" for `takes_noise`; its `shares`
    are those of both; all others are its own. What it sets after `super().__init__` holds as it is.

    Attributes
    ----------
    shares
        Kinds of shares in its plans that this package does not define; clients must be given them.
    cover
        How a group's shares cover a patch: "partition", exactly one member keeps it unchanged;
        "weighted", all members contribute, by their mixing ratios; "partial", at most one member
        keeps it.
    positions
        Where the patches' position embeddings must be added: in either segment (None), or in the
        upper one ("upper"), because the mixer moves patches.
    raw_inputs_cross
        Whether clients see each other's raw inputs: for comparison within one process only.
    takes_noise
        Whether `Noisy` may add noise to what clients send.
    min_members
        The fewest clients with which it works as intended.
    regroup
        Whether clients are regrouped every "step" or every "epoch".
    needs_whole_batch
        Whether batches cannot be mixed in parts, only whole.
    k
        Clients in a full mixing group; 0 if unstated: then a plan shows it.
    min_patches
        The fewest patches that a member of a group keeps, if its members divide them.
    k_times
        Whether a group's k mixtures hold each member's batch k times.
    mask_per_sample
        Whether masks are drawn for every sample of a batch, instead of once for the batch.
    """

    shares: ClassVar[Annotated[tuple[type[Share], ...], Fact(_check_shares, _all)]] = ()
    cover: Annotated[Cover, Fact(_COVER, _outer)] = "partition"
    positions: Annotated[Literal["upper"] | None, Fact(_check_positions, _either)] = None
    raw_inputs_cross: Annotated[bool, Fact(check_truth, _either)] = False
    takes_noise: Annotated[bool, Fact(check_truth, _both)] = True
    min_members: Annotated[int, Fact(partial(whole_number, least=1), max)] = 1
    regroup: Annotated[Regroup, Fact(_REGROUP, _outer)] = "step"
    needs_whole_batch: Annotated[bool, Fact(check_truth, _either)] = False
    k: Annotated[int, Fact(_COUNT, _outer)] = 0
    min_patches: Annotated[int, Fact(_COUNT, _outer)] = 0
    k_times: Annotated[bool, Fact(check_truth, _either)] = False
    mask_per_sample: Annotated[bool, Fact(check_truth, _outer)] = False


def _fact(hint: Any) -> Fact:
    (annotated,) = get_args(hint) if get_origin(hint) is ClassVar else (hint,)
    fact: Fact = annotated.__metadata__[0]
    return fact


FACTS = {
    name: _fact(hint) for name, hint in get_type_hints(MixerFacts, include_extras=True).items()
}
"""All facts, by the names of the attributes that state them."""


def check_facts(mixer: MixerFacts) -> None:
    """Raise TypeError for `shares` that are none, ValueError for another fact not allowed."""
    for name, fact in FACTS.items():
        fact.check(f"{mixer}: {name}", getattr(mixer, name))


def adopt_facts(mixer: MixerFacts, inner: MixerFacts, **instead: Any) -> None:
    """Give a mixer around another the facts of the inner one, joined with those that it states.

    Parameters
    ----------
    **instead
        By name, facts that do not hold of the outer mixer as of the inner one.

    Raises
    ------
    TypeError, ValueError
        If one of two values that are to be joined is not allowed.
    """
    for name, fact in FACTS.items():
        value = instead.get(name, getattr(inner, name))
        if _states(mixer, name):
            outer = getattr(mixer, name)
            for each, stated in ((type(mixer).__name__, outer), (inner, value)):
                fact.check(f"{each}: {name}", stated)
            value = fact.joined(outer, value)
        setattr(mixer, name, value)


def _states(mixer: MixerFacts, name: str) -> bool:
    """Return whether an object, its class, or a base nearer than `MixerFacts` states a fact."""
    bases = type(mixer).__mro__
    nearer = bases[: bases.index(MixerFacts)]
    return name in vars(mixer) or any(name in vars(base) for base in nearer)
