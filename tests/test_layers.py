"""Who may import whom (design, section 3), read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "flwr_splitmix"

NEUTRAL = {"seeding", "schedule", "storage", "device"}
"""Modules that know torch and files, and nothing of split learning."""

MAY_IMPORT: dict[str, set[str]] = {
    "seeding": set(),
    "schedule": {"storage"},
    "storage": set(),
    "device": set(),
    "mixers": {"seeding", "privacy"},  # noise is a part of a share
    "segments": {"seeding"},
    "mixguard": {"seeding", "storage"},
    "privacy": {"seeding"},
    "data": {"seeding"},
    "runs": {"checkpoints", "storage"},
    "checkpoints": {"storage"},
    "events": {"mixers"},
    "clients": {"segments", "mixers", "mixguard", "privacy", *NEUTRAL},
    "links": {"clients", "events", "checkpoints", *NEUTRAL},
    "observers": {"privacy", "mixers", "runs", "events", *NEUTRAL},
    "attacks": {"observers", "events", *NEUTRAL},
    "client_app": {"clients", "links"},
    "app_config": {"links", "runs"},
}
"""What each part of the library may import of the library, besides itself."""

STRATEGIES = set(MAY_IMPORT) - {"attacks", "client_app", "app_config", "data"}
ON_TOP = {"cli", "experiments", "testing"}

FLOWER = ("flwr", "client_app", "links", "testing", "strategies")
RAY = ("ray", "client_app", "links")
GRPC = ("grpc", "links")

UNSTABLE = (
    "flwr.server", "flwr.supernode", "flwr.common", "flwr.supercore", "flwr.simulation",
    "flwr.client", "flwr.superlink", "flwr.proto", "flwr.cli",
)  # fmt: skip


def sources() -> Iterator[tuple[str, Path]]:
    """Return (part, file): a part is a package or module of the library, or "strategies"."""
    for file in sorted(LIBRARY.rglob("*.py")):
        part = file.relative_to(LIBRARY).parts[0].removesuffix(".py")
        if part != "__init__":
            yield part, file
    for file in sorted((ROOT / "strategies").rglob("*.py")):
        yield "strategies", file


def imports(file: Path) -> Iterator[tuple[str, int]]:
    """Return (dotted name, line) of all that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def own_imports(file: Path) -> Iterator[tuple[str, int]]:
    """Return (part, line) of what a file imports of the library."""
    for name, line in imports(file):
        if within(name, "flwr_splitmix"):
            part = name.removeprefix("flwr_splitmix").lstrip(".").split(".")[0]
            yield part, line


FILES = [pytest.param(part, file, id=f"{part}-{file.stem}") for part, file in sources()]


@pytest.mark.parametrize(("part", "file"), FILES)
def test_the_library_imports_downwards_only(part: str, file: Path) -> None:
    if part in ON_TOP:
        return
    allowed = STRATEGIES if part == "strategies" else MAY_IMPORT.get(part)
    assert allowed is not None, f"{part} is new: say in MAY_IMPORT what it may import"
    for other, line in own_imports(file):
        assert other == part or other in allowed, (
            f"{file.relative_to(ROOT)}:{line}: {part} may not import {other or 'the whole package'}"
        )


@pytest.mark.parametrize(("part", "file"), FILES)
def test_imports_are_absolute(part: str, file: Path) -> None:
    """Relative ones would escape the tests of this file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{file}:{node.lineno}"


@pytest.mark.parametrize(("part", "file"), FILES)
def test_few_know_flower_ray_and_grpc(part: str, file: Path) -> None:
    for name, line in imports(file):
        for package, *known in (FLOWER, RAY, GRPC):
            if within(name, package):
                assert part in known, f"{file.relative_to(ROOT)}:{line}: {part} imports {name}"


def every_file() -> list[Path]:
    places = [LIBRARY, *(ROOT / name for name in ("strategies", "apps", "examples", "benchmarks"))]
    return [file for place in places for file in sorted(place.rglob("*.py"))]


@pytest.mark.parametrize("file", every_file(), ids=lambda file: str(file.relative_to(ROOT)))
def test_flowers_inner_modules_stay_its_own(file: Path) -> None:
    for name, line in imports(file):
        here = f"{file.relative_to(ROOT)}:{line} imports {name}"
        assert not any(within(name, module) for module in UNSTABLE), here
        if within(name, "flwr"):
            assert not any(part.startswith("_") for part in name.split(".")), here


def test_the_apps_use_the_library_and_the_library_no_app() -> None:
    apps = {file.stem for file in (ROOT / "apps").rglob("*.py")}
    for _, file in sources():
        for name, line in imports(file):
            top = name.split(".")[0]
            assert top not in {"apps", "examples", "benchmarks", "tests", "strategies", *apps}, (
                f"{file.relative_to(ROOT)}:{line} imports {name}"
            )


def test_the_names_handed_to_users_need_no_strategy() -> None:
    """A client's process imports the package; the strategies are the server's."""
    parts = {part for part, _ in own_imports(LIBRARY / "__init__.py")}
    assert parts <= {"client_app", "clients", "links", "runs", "schedule", "segments", "mixers"}
