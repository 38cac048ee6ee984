"""The mark of a client's methods that a server may call, with a call's place in a round."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from flwr_splitmix.words import listed

Method = TypeVar("Method", bound=Callable[..., Any])

_EXCHANGE = "_splitmix_exchange"
_PLACE = "_splitmix_place"


@overload
def exchange(method: Method) -> Method: ...


@overload
def exchange(*, place: Sequence[str]) -> Callable[[Method], Method]: ...


def exchange(method: Method | None = None, *, place: Sequence[str] | None = None) -> Any:
    """Mark a client method as one that the server may call over a link.

    Its arguments and its reply are tensors and plain values (numbers, strings, None, lists and
    dictionaries of them). A subclass that overrides the method must mark the override too.

    Parameters
    ----------
    place
        Names of arguments, whole numbers, that give a call's place in its round: what the method
        draws from torch's, NumPy's or Python's generator is the same in calls of the same place.
        With no names it is the same in all calls of a round. None: that of the method that it
        overrides; else calls are counted, and each call of a round draws anew.

    Raises
    ------
    TypeError
        If `place` is one string, which would be taken for a list of letters, is not given by its
        name, or names an argument that the method does not take.
    """
    if isinstance(place, str):
        raise TypeError(f"place is {place!r}; expected a tuple of names, such as ({place!r},)")
    if method is not None and not callable(method):
        raise TypeError(f"@exchange({method!r}) marks no method; write @exchange(place={method!r})")

    def mark(function: Method) -> Method:
        setattr(function, _EXCHANGE, True)
        if place is not None:
            if unknown := _refused(function, place):
                raise TypeError(
                    f"place of the exchange {function.__name__} names {listed(unknown)}, which it "
                    "does not take"
                )
            setattr(function, _PLACE, tuple(place))
        return function

    return mark if method is None else mark(method)


def is_exchange(method: object) -> bool:
    """Return whether a method is marked as an exchange."""
    return bool(getattr(method, _EXCHANGE, False))


def lacking(method: Callable[..., Any], overridden: Callable[..., Any]) -> list[str]:
    """Return the names of arguments that an override does not take, and the method did."""
    return _refused(method, list(inspect.signature(overridden).parameters)[1:])


def _refused(function: Callable[..., Any], names: Sequence[str]) -> list[str]:
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return []
    return [name for name in names if name not in parameters]


def place_names(kind: type, method: str) -> tuple[str, ...] | None:
    """Return the `place` of a class's exchange, its own or the overridden one's; or None."""
    for base in kind.__mro__:
        names: tuple[str, ...] | None = getattr(vars(base).get(method), _PLACE, None)
        if names is not None:
            return names
    return None
