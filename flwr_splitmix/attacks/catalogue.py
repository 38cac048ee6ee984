"""The attacks by name, collected from the modules of a folder; a new one needs no line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args

from flwr_splitmix.attacks.base import NEEDS, Attack, Goal

if TYPE_CHECKING:
    from flwr_splitmix.attacks.texts.view import TextAttack


@cache
def image_attacks() -> dict[str, type[Attack]]:
    """Return all attacks on images by their names, sorted."""
    from flwr_splitmix.attacks import images

    return _attacks_of(images, Attack)


@cache
def text_attacks() -> dict[str, type[TextAttack]]:
    """Return all attacks on texts by their names, sorted; needs the extra `language`."""
    from flwr_splitmix.attacks import texts
    from flwr_splitmix.attacks.texts.view import TextAttack

    return _attacks_of(texts, TextAttack)


def _attacks_of(folder: ModuleType, base: type) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    for place in iter_modules(folder.__path__):
        module = import_module(f"{folder.__name__}.{place.name}")
        for value in vars(module).values():
            is_of_module = isinstance(value, type) and value.__module__ == module.__name__
            if not is_of_module or not issubclass(value, base) or value.__name__.startswith("_"):
                continue
            if not isabstract(value) and "name" in vars(value):
                kinds[vars(value)["name"]] = value
    return dict(sorted(kinds.items()))


def attack_named(name: str) -> type[Attack]:
    """Return an attack on images by its name.

    Raises
    ------
    ValueError
        If there is none of that name; the message lists the known attacks.
    """
    attacks = image_attacks()
    if name not in attacks:
        raise ValueError(f"unknown attack on images {name!r}; available: {', '.join(attacks)}")
    return attacks[name]


def own_attack(kind: object) -> type[Attack]:
    """Return an own class of an attack on images.

    Raises
    ------
    TypeError
        If it is no such class, lacks its name, its goal or `run`, or has an unknown goal or need.
    """
    if not (isinstance(kind, type) and issubclass(kind, Attack)):
        raise TypeError(
            f"attack is {kind!r}; it must be the name of an attack on images, or a subclass of "
            "flwr_splitmix.attacks.Attack"
        )
    lacking = [name for name in ("name", "goal") if not hasattr(kind, name)]
    lacking += sorted(kind.__abstractmethods__)
    if lacking:
        raise TypeError(f"the attack {kind.__name__} lacks {', '.join(lacking)}")
    if kind.goal not in (goals := get_args(Goal)):
        raise TypeError(
            f"the attack {kind.__name__} has the goal {kind.goal!r}; it must be one of "
            f"{', '.join(goals)}"
        )
    if unknown := sorted(set(kind.needs) - NEEDS.keys()):
        raise TypeError(
            f"the attack {kind.__name__} has unknown needs {', '.join(map(repr, unknown))}; "
            f"available: {', '.join(NEEDS)}"
        )
    return kind


def text_attack_named(name: str) -> type[TextAttack]:
    """Return an attack on texts by its name; raises as `attack_named`."""
    attacks = text_attacks()
    if name not in attacks:
        raise ValueError(f"unknown attack on texts {name!r}; available: {', '.join(attacks)}")
    return attacks[name]
