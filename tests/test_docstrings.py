"""Docstrings name the parameters that functions and classes have."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import flwr_splitmix

SECTION = re.compile(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", re.MULTILINE | re.DOTALL)


def documented_names(docstring: str) -> set[str]:
    """Return the names in a docstring's section of parameters."""
    section = SECTION.search(inspect.cleandoc(docstring))
    # A paragraph that is not indented follows the last parameter.
    lines = section[1].splitlines() if section else []
    listed = [line for line in lines if re.fullmatch(r"[\w*]+(, [\w*]+)*", line)]
    return {name.strip("*") for line in listed for name in line.split(", ")}


def accepted_names(function: Callable[..., Any]) -> set[str] | None:
    """Return the names of a function's or class's parameters; None if it takes any keyword."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return None
    return set(parameters)


def documented_objects() -> Iterator[tuple[str, Any]]:
    """Yield the functions, classes and methods of the library that have a docstring, with names."""
    for module in pkgutil.walk_packages(flwr_splitmix.__path__, "flwr_splitmix."):
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if getattr(value, "__module__", "") != module.name or not callable(value):
                continue
            members = vars(value).items() if inspect.isclass(value) else ()
            methods = [(f"{name}.{m}", f) for m, f in members if inspect.isfunction(f)]
            for path, each in [(name, value), *methods]:
                if each.__doc__:
                    yield f"{module.name}.{path}", each


def test_parameters_are_documented_by_their_names() -> None:
    wrong = []
    for path, each in documented_objects():
        documented = documented_names(each.__doc__)
        accepted = accepted_names(each) if documented else None
        if accepted is not None and documented - accepted:
            wrong.append(f"{path}: {', '.join(sorted(documented - accepted))}")
    assert not wrong


def test_names_are_read_from_the_section_of_parameters() -> None:
    docstring = """Do it.

    Parameters
    ----------
    one, two
        Two of them.
    **others
        Any.

    More about it.

    Raises
    ------
    ValueError
        If not.
    """
    assert documented_names(docstring) == {"one", "two", "others"}
    assert documented_names("Do it.") == set()
