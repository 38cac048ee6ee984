"""Which methods of a client a server may call, and what says where in a round a call is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])

_EXCHANGE = "_splitmix_exchange"
_PLACE = "_splitmix_place"


@overload
def exchange(method: F) -> F: ...


@overload
def exchange(*, place: Sequence[str]) -> Callable[[F], F]: ...


def exchange(method: F | None = None, *, place: Sequence[str] | None = None) -> Any:
    """Mark a client method as one that the server may call over a link.

    Its arguments and its reply are tensors and plain values (numbers, strings, None, lists and
    dictionaries of them). A subclass that overrides the method must mark the override too.

    Parameters
    ----------
    place
        Names of arguments, whole numbers, that say where in its round a call is: what the method
        draws from torch's, NumPy's or Python's generator is the same in calls of the same place.
        With no names it is the same in all calls of a round. None: that of the method that it
        overrides; else calls are counted, and each call of a round draws anew.

    Raises
    ------
    TypeError
        If `place` is one string: it would be taken for a list of letters.
    """
    if isinstance(place, str):
        raise TypeError(f"place is {place!r}; needed is a tuple of names, such as ({place!r},)")

    def mark(function: F) -> F:
        setattr(function, _EXCHANGE, True)
        if place is not None:
            setattr(function, _PLACE, tuple(place))
        return function

    return mark if method is None else mark(method)


def is_exchange(method: object) -> bool:
    """Return whether a method is marked as an exchange."""
    return bool(getattr(method, _EXCHANGE, False))


def place_names(kind: type, method: str) -> tuple[str, ...] | None:
    """Return the `place` of a class's exchange, its own or that of what it overrides; or None."""
    for base in kind.__mro__:
        names: tuple[str, ...] | None = getattr(vars(base).get(method), _PLACE, None)
        if names is not None:
            return names
    return None
