"""The numeric options of methods, read from the annotations of their constructors.

The annotations are parsed from the source, because an import would load torch, which is not needed
to list and show experiments.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_LIBRARY = Path(__file__).parents[1]

_PLACES = ("strategies", "hiding", "clients", "privacy/noise.py")
"""Sources of options: of strategies, of hidings, of clients in the U shape, and of noise."""

_SCALE = {"float", "float | None"}


@cache
def scale_options() -> frozenset[str]:
    """Return the names of all real-valued options, for which 6 and 6.0 are the same value."""
    return frozenset(name for file in _sources() for name in _annotated(file))


def _sources() -> Iterator[Path]:
    for place in _PLACES:
        path = _LIBRARY / place
        yield from sorted(path.rglob("*.py")) if path.is_dir() else (path,)


def _annotated(file: Path) -> Iterator[str]:
    """Yield the real-valued keyword parameters of constructors and attributes of classes in a file.

    They are recognised by their annotations, see `_SCALE`.
    """
    for kind in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(kind, ast.ClassDef):
            continue
        for part in kind.body:
            if isinstance(part, ast.AnnAssign) and ast.unparse(part.annotation) in _SCALE:
                yield ast.unparse(part.target)
            elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
                for argument in part.args.kwonlyargs:
                    if argument.annotation and ast.unparse(argument.annotation) in _SCALE:
                        yield argument.arg
