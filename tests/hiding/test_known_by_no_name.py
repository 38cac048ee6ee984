"""Facts of a method of the U shape come from its `Hiding` and its entry, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from flwr_splitmix.hiding import HIDINGS, Hiding
from flwr_splitmix.methods import METHODS, strategy_class

LIBRARY = Path(__file__).parents[2] / "flwr_splitmix"

KNOW_METHODS = ("hiding", "strategies", "methods", "experiments")
"""Packages that are about single methods."""

KNOW_ONE = {
    Path("clients/ushape/mixguard_client.py"),  # MixGuard's client has a name of its own
    Path("testing/toy_texts.py"),
    Path("attacks/batch_ring.py"),  # what an attack on NaiveMix undoes
    Path("attacks/images/solve_batch.py"),
}
"""Files that are about one method."""

CLASSES = {kind.__name__ for kind in HIDINGS}
NAMES = {
    name
    for method in METHODS
    if method.shape == "U" and strategy_class(method.name).hiding is not Hiding
    for name in method.names
}


def named(source: str) -> Iterator[str]:
    """Yield each class of a hiding, and each name of its strategy, that code has."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.Attribute | ast.alias):
            name = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name"}[type(node)]
            if (identifier := getattr(node, name)) in CLASSES | NAMES:
                yield f"line {node.lineno}: {identifier}"
        elif isinstance(node, ast.Constant) and node.value in NAMES:
            yield f"line {node.lineno}: {node.value!r}"


def test_no_hiding_is_known_by_name_or_class_where_all_are_used() -> None:
    """A list of classes would fail for any other one."""
    wrong = {}
    for file in sorted(LIBRARY.rglob("*.py")):
        place = file.relative_to(LIBRARY)
        if place.parts[0] in KNOW_METHODS or place in KNOW_ONE:
            continue
        if lines := list(named(file.read_text(encoding="utf-8"))):
            wrong[str(place)] = lines
    assert not wrong


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(hiding, DPSGD)",
        "isinstance(hiding, dp_sgd.DPSGD)",
        "from flwr_splitmix.hiding import NaiveMix as Mixes",
        "config.strategy == 'MixGuard'",
        "CALIBRATED = ('MixGuard', 'SnDSL')",
    ],
)
def test_each_way_to_know_one_is_found(source: str) -> None:
    assert list(named(source))
    assert not list(named('"""Two texts, as MixGuard has them."""\nhiding = Hiding()'))
