"""The imports that each part may make (docs/architecture.md); each source file is read once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "flwr_splitmix"

NEUTRAL = {
    "seeding", "schedule", "optimizers", "optimizer_state", "files", "finite",
    "storage", "device", "extras", "labels", "limits", "seen_keys", "overriding", "private_names",
    "values", "words", "errors",
}  # fmt: skip
"""Modules that know torch and files, and nothing of split learning."""

MAY_IMPORT: dict[str, set[str]] = {
    "seeding": set(),
    "page_blocks": set(),
    "methods": {"page_blocks"},
    "schedule": {"errors", "values"},
    "optimizers": {"schedule", "seen_keys", "storage", "optimizer_state", "values", "words"},
    "files": set(),
    "storage": {"files", "words"},
    "seen_keys": set(),
    "private_names": set(),
    "optimizer_state": {"storage"},
    "threads": set(),
    "device": {"values"},
    "errors": set(),
    "extras": set(),
    "finite": set(),
    "labels": set(),
    "limits": set(),
    # between client and server
    "description": {"errors", "suggestions", "values"},
    "overriding": set(),
    "values": {"words"},
    "words": set(),
    "suggestions": set(),
    "registries": set(),
    "pretrained": {"registries", "files", "extras", "words"},
    "privacy": {"seeding", "files", "values", "words"},
    # noise is a part of a share
    "mixers": {
        "seeding", "errors", "labels", "seen_keys", "overriding", "privacy", "values", "words",
    },
    # what shares cost: `privacy` knows no mixers, and `mixers` no ledgers
    "accounting": {"description", "mixers", "privacy", "seen_keys", "values", "words"},
    "segments": {
        "seeding", "optimizers", "files", "finite", "extras", "limits", "pretrained",
        "private_names", "values", "words", "errors",
    },
    "data": {
        "seeding", "registries", "files", "pretrained", "errors", "extras", "values", "words",
    },
    "scoring": {"data", "extras", "labels", "words"},
    "hiding": {"data", "scoring", "privacy", *NEUTRAL},
    # exports, their cards
    "runs": {
        "files", "finite", "storage", "segments", "data", "methods", "extras",
        "values", "words",
    },
    "clients": {
        "description", "segments", "mixers", "accounting", "hiding", "privacy", "data", "scoring",
        *NEUTRAL,
    },
    "links": {"clients", "description", "events", "privacy", "runs", "suggestions", *NEUTRAL},
    "observers": {
        "description", "events", "privacy", "mixers", "accounting", "runs", "suggestions", *NEUTRAL,
    },
    "client_app": {"clients", "links", "values"},
    "events": {"description", "mixers"},
}  # fmt: skip
"""The parts of the library that each part may import, besides itself."""

LIBRARY_PARTS = set(MAY_IMPORT) - {"client_app"}
MAY_IMPORT["server"] = LIBRARY_PARTS
# a third party's process, which shares with a server how uploads are taken
MAY_IMPORT["mixer_process"] = {
    "accounting", "description", "events", "labels", "limits", "links", "mixers", "privacy",
    "seeding", "seen_keys", "segments", "server", "values", "words",
}  # fmt: skip
MAY_IMPORT["strategies"] = {*LIBRARY_PARTS, "server"}
MAY_IMPORT["flwr_command"] = set()
BELOW = set(MAY_IMPORT)
ON_TOP: dict[str, set[str]] = {
    "attacks": set(),
    "apps": {"attacks"},
    "experiments": {"attacks", "apps"},
    "cli": {"attacks", "apps", "experiments"},
    "sandbox": set(),
    "templates": set(),
    "testing": set(),
}
"""Parts that may import all parts below, and not be imported there; and these that each may."""

MAY_IMPORT |= {part: BELOW | beside for part, beside in ON_TOP.items()}

KNOWN = {
    "flwr": {"client_app", "links", "server", "strategies", "sandbox", "testing", "apps"},
    "ray": {"client_app", "links"},
    "grpc": {"links"},
}
"""The parts that may import Flower, Ray and gRPC."""

UNSTABLE = (
    "flwr.server", "flwr.supernode", "flwr.common", "flwr.supercore", "flwr.simulation",
    "flwr.client", "flwr.superlink", "flwr.proto", "flwr.cli",
)  # fmt: skip


class Import(NamedTuple):
    """One name that a file imports, anywhere in it."""

    file: Path
    line: int
    name: str
    relative: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.name}"

    def of(self, *modules: str) -> bool:
        return any(self.name == m or self.name.startswith(f"{m}.") for m in modules)

    @property
    def part(self) -> str:
        """The imported part of the library: a package or a module of it."""
        return self.name.removeprefix("flwr_splitmix").lstrip(".").split(".")[0]


def part_of(file: Path) -> str:
    return file.relative_to(LIBRARY).parts[0].removesuffix(".py")


@cache
def imports_of(place: Path) -> tuple[Import, ...]:
    """Return all imports of the files below a folder."""
    return tuple(
        module_import
        for file in sorted(place.rglob("*.py"))
        for module_import in _imports_of_file(file)
    )


def _imports_of_file(file: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, a.name, False) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (Import(file, node.lineno, name, bool(node.level)) for name in names)


def in_the_library() -> Iterator[tuple[str, Import]]:
    for each in imports_of(LIBRARY):
        if (part := part_of(each.file)) != "__init__":
            yield part, each


def everywhere() -> Iterator[Import]:
    for name in ("flwr_splitmix", "apps", "examples", "benchmarks"):
        yield from imports_of(ROOT / name)


def test_every_part_has_its_place() -> None:
    parts = {part_of(file) for file in LIBRARY.rglob("*.py")} - {"__init__"}
    assert parts == set(MAY_IMPORT)


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_the_library_imports_downwards_only(part: str) -> None:
    allowed = {part, *MAY_IMPORT[part]}
    wrong = [
        str(each)
        for importer, each in in_the_library()
        if importer == part and each.of("flwr_splitmix") and each.part not in allowed
    ]
    assert not wrong, f"{part} may import {sorted(allowed)}"


def test_no_part_imports_what_imports_it() -> None:
    """A part and another one may not know each other, over any number of steps."""
    ordered: set[str] = set()
    while ready := {p for p in MAY_IMPORT if p not in ordered and MAY_IMPORT[p] <= ordered}:
        ordered |= ready
    assert ordered == set(MAY_IMPORT)


def test_of_a_server_a_third_partys_mixer_knows_only_how_uploads_are_taken() -> None:
    """It is trusted with single uploads in the server's stead, and has no run of its own."""
    shared = "flwr_splitmix.server.intake", "flwr_splitmix.server.steps"
    used = [each for part, each in in_the_library() if part == "mixer_process"]
    of_a_server = [each for each in used if each.part == "server"]
    assert of_a_server
    assert not [str(each) for each in of_a_server if not each.of(*shared)]


def test_nothing_of_a_run_knows_a_third_partys_mixer() -> None:
    """Only the command that starts the process does: a server reaches it over the network."""
    knows = {part for part, each in in_the_library() if each.part == "mixer_process"}
    assert knows == {"mixer_process", "cli"}


def test_imports_are_absolute() -> None:
    """Relative ones would escape the tests of this file."""
    assert not [str(each) for _, each in in_the_library() if each.relative]


def test_few_know_flower_ray_and_grpc() -> None:
    wrong = [
        str(each)
        for part, each in in_the_library()
        for package, parts in KNOWN.items()
        if each.of(package) and part not in parts
    ]
    assert not wrong


def test_flowers_inner_modules_stay_its_own() -> None:
    wrong = [
        str(each)
        for each in everywhere()
        if each.of(*UNSTABLE)
        or (each.of("flwr") and any(part.startswith("_") for part in each.name.split(".")))
    ]
    assert not wrong


def test_the_library_knows_nothing_outside_of_it() -> None:
    outside = {file.stem for file in (ROOT / "apps").rglob("*.py")}
    outside |= {"apps", "examples", "benchmarks", "tests", "strategies"}
    assert not [str(e) for _, e in in_the_library() if e.name.split(".")[0] in outside]


def test_the_names_handed_to_users_need_no_strategy() -> None:
    """A client's process imports the package; the strategies are the server's."""
    parts = {e.part for e in imports_of(LIBRARY) if e.file == LIBRARY / "__init__.py"}
    imported = parts & set(MAY_IMPORT)
    assert imported <= {
        "client_app", "clients", "links", "optimizers", "runs", "schedule", "segments", "privacy",
        "threads",
    }  # fmt: skip


def test_the_strategies_are_found_at_the_top() -> None:
    """`strategies` is a relative link to the package, so that there is one tree."""
    link = ROOT / "strategies"
    assert link.is_symlink()
    assert link.readlink() == Path("flwr_splitmix/strategies")
    assert (link / "split.py").samefile(LIBRARY / "strategies" / "split.py")
