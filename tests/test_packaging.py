"""Contents of a release: metadata, the README as an index shows it, the sdist, citation, image."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from flwr_splitmix.methods import METHODS

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build the sdist from what git knows; returns its files and, of text ones, what they say."""
    folder = tmp_path_factory.mktemp("sdist")
    checkout = folder / "checkout"
    for name in repository():
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copyfile(ROOT / name, target)
    build = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"
    process = subprocess.run(
        [sys.executable, "-c", build, folder],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    (archive,) = folder.glob("*.tar.gz")
    files = {}
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            if member.isfile():
                content = opened.extractfile(member)
                assert content is not None
                name = member.name.partition("/")[2]
                files[name] = content.read().decode("utf-8", errors="replace")
    return files


def repository() -> list[str]:
    """Return the files that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("this is no git checkout")
    return listed.stdout.splitlines()


def test_the_sdist_holds_the_repository(sdist: dict[str, str]) -> None:
    """All but the link `strategies`, which archives for Python do not keep."""
    left_out = {name for name in repository() if (ROOT / name).is_file()} - sdist.keys()
    assert left_out == set()
    assert "docs/methods.md" in sdist
    assert "docs/notebooks/ten-lines.ipynb" in sdist


def metadata(sdist: dict[str, str]) -> Message:
    return message_from_string(sdist["PKG-INFO"])


def test_the_readme_of_an_index_has_absolute_links_to_files_that_are_there(
    sdist: dict[str, str],
) -> None:
    described = metadata(sdist)
    assert described["Description-Content-Type"] == "text/markdown"
    text = str(described.get_payload())
    assert "# flwr-splitmix" in text
    targets = re.findall(r"\]\(([^)]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    assert len(targets) > 25
    repository = PROJECT["urls"]["Repository"]
    for target in targets:
        assert target.startswith(("https://", "#")), target
        if target.startswith(repository):
            kind, tag, path = target.removeprefix(f"{repository}/").split("/", 2)
            assert tag == f"v{PROJECT['version']}"
            assert (ROOT / path.partition("#")[0]).exists(), path
            assert kind == ("raw" if path.endswith((".svg", ".png")) else "blob")
    urls = dict(entry.split(", ", 1) for entry in described.get_all("Project-URL", []))
    assert urls == PROJECT["urls"]
    assert {"Repository", "Documentation", "Issues", "Changelog"} <= urls.keys()


def test_the_readme_requires_the_systems_of_the_classifiers() -> None:
    kind = "Operating System :: "
    named = [c for c in PROJECT["classifiers"] if c.startswith(kind)]
    (required,) = re.findall(
        r"^Requirements: (\w+) or (\w+);", (ROOT / "README.md").read_text(encoding="utf-8"), re.M
    )
    assert {s.lower() for s in required} == {c.rpartition(" ")[2].lower() for c in named}


def test_links_become_absolute_and_nothing_else() -> None:
    absolute = runpy.run_path(str(ROOT / "setup.py"))["absolute"]
    text = "[a](docs/a.md#b) ![p](p.svg) [x](https://x) [y](#y) `f(x)[i](2)`"
    assert absolute(text, "https://r", "v1").startswith(
        "[a](https://r/blob/v1/docs/a.md#b) ![p](https://r/raw/v1/p.svg) [x](https://x) [y](#y)"
    )


def test_the_changelog_and_the_citation_have_the_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\S+)", changes, re.M)
    assert versions[0] == "Unreleased"
    first = re.findall(r"^This will be version (\S+), the first release", changes, re.M)
    assert (versions[1:2] or first) == [PROJECT["version"]]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == PROJECT["version"]
    noted = " ".join(str(work.get("notes", "")) for work in citation["references"])
    assert "No noise" not in noted
    named = set(re.findall(r"\w+", noted))
    assert {"DPSL", "DPMixSL", "DPCutMixSL"} <= named & {method.name for method in METHODS}


def test_make_compat_takes_the_oldest_of_everything_that_is_allowed() -> None:
    pins = (ROOT / "tests" / "oldest.txt").read_text(encoding="utf-8").split()
    pinned = dict(pin.split("==") for pin in pins)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"oldest\.txt \\\s+--editable '\.\[(.+?)\]'", makefile)
    allowed = list(PROJECT["dependencies"])
    for extra in extras.split(","):
        allowed += PROJECT["optional-dependencies"][extra]
    lowest: dict[str, str] = {}
    for line in allowed:
        name, version = re.sub(r"\[.*\]|,.*", "", line).split(">=")
        lowest[name] = max(version, lowest.get(name, version), key=Version)
    assert pinned.keys() == lowest.keys()
    assert [name for name in pinned if not pinned[name].startswith(lowest[name])] == []


def test_the_image_is_linted() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed")
    process = subprocess.run(
        [hadolint, "--format", "json", "--failure-threshold", "style", ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(process.stdout) == []
    assert process.returncode == 0


def test_the_image_is_made_of_what_there_is() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M)
    names = [name for line in copied for name in line.split()]
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name in names:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in allowed
    # Links within the package, as of its templates, must not dangle there.
    links = [path for path in (ROOT / "flwr_splitmix").rglob("*") if path.is_symlink()]
    targets = {link.resolve().relative_to(ROOT).parts[0] for link in links}
    assert targets
    assert targets <= set(names)
    allowed_there = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["vision"]]
    assert set(re.findall(r'"(torch\w*>=.+?)"', text)) == {
        line for line in allowed_there if line.startswith("torch")
    }
    (extra,) = re.findall(r"^ARG EXTRAS=(\w+)$", text, re.M)
    assert extra in PROJECT["optional-dependencies"]


def test_notebooks_have_no_outputs() -> None:
    books = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert len(books) == 4
    for file in books:
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs"), f"{file.name}: clear its outputs"
            assert cell.get("execution_count") is None
