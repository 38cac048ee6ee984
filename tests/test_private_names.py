"""Private names of other packages are used in one module only; read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[1] / "flwr_splitmix"

THEIR_PLACE = LIBRARY / "private_names.py"

OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
"""Public, though they begin with an underscore: fields may have any other name."""

BY_NAME = {"getattr", "setattr", "hasattr", "delattr"}


def is_private(name: str) -> bool:
    return (
        name.startswith("_")
        and name.strip("_") != ""
        and not name.endswith("__")
        and name not in OF_NAMED_TUPLES
    )


def given_in(tree: ast.AST) -> set[str]:
    """Return the names that a file gives to functions, classes and values."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if is_own_object(node.value) else set()
    return names


def is_own_object(node: ast.expr) -> bool:
    """Return whether an expression is `self`, `cls` or `super()`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def foreign_names(tree: ast.AST, defined: set[str], anywhere: set[str]) -> Iterator[str]:
    """Yield what a file uses of others' private names, with its line.

    Parameters
    ----------
    defined
        Names that the file gives: an object that is not `self` may have these.
    anywhere
        Names that some file of the library gives: `self` may have inherited these.
    """
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if (used := attribute_of(node)) is not None:
            owner, name = used
            if is_private(name) and name not in (anywhere if is_own_object(owner) else defined):
                yield f"{line}: {ast.unparse(node)}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = [f"{module}.{alias.name}" for alias in node.names]
            yield from (f"{line}: {n}" for n in names if any(map(is_private, n.split("."))))


def attribute_of(node: ast.AST) -> tuple[ast.expr, str] | None:
    """Return an object and its attribute's name, if that is what an expression is about."""
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_NAME:
        match node.args:
            case [owner, ast.Constant(value=str(name)), *_]:
                return owner, name
    return None


def test_private_names_of_others_are_in_one_module() -> None:
    trees = {file: ast.parse(file.read_text()) for file in sorted(LIBRARY.rglob("*.py"))}
    defined_names = {file: given_in(tree) for file, tree in trees.items()}
    anywhere = set().union(*defined_names.values())
    wrong = [
        f"{file.relative_to(LIBRARY)}:{each}"
        for file, tree in trees.items()
        if file != THEIR_PLACE
        for each in foreign_names(tree, defined_names[file], anywhere)
    ]
    assert not wrong, "use the public form, or a function of flwr_splitmix/private_names.py"


@pytest.mark.parametrize(
    "source",
    [
        "torch._foreach_norm(tensors)",
        "config._attn_implementation = 'sdpa'",
        "isinstance(layer, nn.modules.batchnorm._BatchNorm)",
        "getattr(module, '_orig_mod', module)",
        "from torch.nn.utils.clip_grad import _get_total_norm",
        "from torch._dynamo import eval_frame",
        "import torch._dynamo",
        "self._orig_mod",
    ],
)
def test_a_private_name_of_another_package_is_found(source: str) -> None:
    assert len(list(foreign_names(ast.parse(source), set(), set()))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "self._own",
        "super()._own()",
        "other._own_here",
        "pair._replace(first=1)",
        "from __future__ import annotations",
        "type(self).__name__",
        "hasattr(self, '_own')",
    ],
)
def test_own_and_public_names_are_free(source: str) -> None:
    foreign = foreign_names(ast.parse(source), {"_own_here"}, {"_own", "_own_here"})
    assert not list(foreign)
