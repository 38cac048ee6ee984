"""The attacks by name: those of the modules of a folder; a further one needs no line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules

from flwr_splitmix.attacks.base import Attack


@cache
def image_attacks() -> dict[str, type[Attack]]:
    """Return all attacks on images by their names, sorted."""
    from flwr_splitmix.attacks import images

    kinds: dict[str, type[Attack]] = {}
    for place in iter_modules(images.__path__):
        module = import_module(f"{images.__name__}.{place.name}")
        for value in vars(module).values():
            own = isinstance(value, type) and value.__module__ == module.__name__
            if (
                own
                and issubclass(value, Attack)
                and not isabstract(value)
                and "name" in vars(value)
            ):
                kinds[value.name] = value
    return dict(sorted(kinds.items()))


def attack_named(name: str) -> type[Attack]:
    """Return an attack on images by its name.

    Raises
    ------
    ValueError
        If there is none of that name; it lists those that there are.
    """
    known = image_attacks()
    if name not in known:
        raise ValueError(f"there is no attack {name!r}; there are {', '.join(known)}")
    return known[name]
