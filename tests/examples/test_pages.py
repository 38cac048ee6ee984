"""README.md and docs/: links lead somewhere, paths exist, strategies are those that there are."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.strategies import STRATEGIES, USHAPE_STRATEGIES

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
RESULTS = sorted((DOCS / "results").glob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")), *RESULTS]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


def anchors(page: Path) -> set[str]:
    """Return what a link can name of a page: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@every_page
def test_links_lead_to_what_there_is(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)", prose(page))
    for path, anchor in targets:
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_headings_that_the_source_cites_exist() -> None:
    cited = re.compile(r'docs/([\w-]+\.md),\s+"([^"]+)"')
    files = [file for room in ("flwr_splitmix", "apps") for file in (ROOT / room).rglob("*.py")]
    citations = [(page, *at) for page in files for at in cited.findall(page.read_text("utf-8"))]
    assert len(citations) > 3
    missing = [
        (str(file.relative_to(ROOT)), page, heading)
        for file, page, heading in citations
        if f"# {heading}\n" not in prose(DOCS / page)
    ]
    assert missing == []


@pytest.mark.parametrize("book", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda b: b.name)
def test_notebooks_link_to_files_as_a_repository_has_them(book: Path) -> None:
    """Not only as the built site has its pages."""
    for cell in json.loads(book.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            for path in re.findall(r"\]\((?!https?://)([^)#]+)", "".join(cell["source"])):
                assert (book.parent / path).is_file(), path


def test_the_readme_links_to_every_page_but_those_of_results_which_lead_on() -> None:
    text = README.read_text(encoding="utf-8")
    linked = [page for page in PAGES if page != README and page not in RESULTS]
    assert [page.name for page in linked if f"{page.name})" not in text] == []
    overview = (DOCS / "results.md").read_text(encoding="utf-8")
    assert [page.name for page in RESULTS if f"(results/{page.name})" not in overview] == []


def test_every_path_of_the_architecture_page_exists() -> None:
    named = re.findall(r"`([\w./]+(?:/|\.(?:py|md|toml)))`", prose(ROOT / "docs/architecture.md"))
    assert len(set(named)) > 60
    homes = (ROOT / "flwr_splitmix", ROOT)
    missing = {path for path in named if not any((home / path).exists() for home in homes)}
    assert missing - {"pyproject.toml"} == set()


@pytest.mark.parametrize("folder", ["server", "clients", "attacks", "apps", "links"])
def test_the_architecture_page_names_every_file_of_a_folder_that_it_explains(folder: str) -> None:
    """Or which file does what could not be found there."""
    text = prose(ROOT / "docs/architecture.md")
    library = ROOT / "flwr_splitmix"
    files = [file for file in (library / folder).rglob("*.py") if file.name != "__init__.py"]
    unnamed = set()
    for file in files:
        folders = [parent for parent in file.parents if (library / folder) in parent.parents]
        paths = [str(file.relative_to(library)), *(f"{f.relative_to(library)}/" for f in folders)]
        if not any(f"`{path}`" in text for path in paths):
            unnamed.add(paths[0])
    assert unnamed == set()


def test_the_architecture_page_has_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {file.parent.name for file in (ROOT / "flwr_splitmix").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)/` \|", text, re.M)) == rooms


def test_the_readme_lists_every_family_of_strategies() -> None:
    text = README.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`.*?) \|", text[text.index("## Methods") :], re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    strategies = STRATEGIES.keys() | USHAPE_STRATEGIES.keys()
    assert named <= strategies
    expected = {name for name in strategies if name.endswith("SL") and not name.startswith("Input")}
    assert expected <= named


def app_keys(app: str) -> dict[str, Any]:
    loaded = tomllib.loads((ROOT / "apps" / app / "pyproject.toml").read_text(encoding="utf-8"))
    keys: dict[str, Any] = loaded["tool"]["flwr"]["app"]["config"]
    return keys


@every_page
def test_run_configurations_have_keys_and_types_of_the_app(page: Path) -> None:
    runs = re.findall(
        r'flwr run (?:CHECKOUT/)?apps/(\w+) (?:[^"\n]|\\\n|"[^"]*")*?--run-config "(.*?)"',
        page.read_text(encoding="utf-8"),
        re.S,
    )
    if page.name in ("README.md", "simulation.md", "language.md", "configuration.md"):
        assert runs
    for app, text in runs:
        keys = app_keys(app)
        for key, value in tomllib.loads(
            re.sub(r"\s+(?=[\w-]+=)", "\n", text.replace("\\", ""))
        ).items():
            default = keys[key]
            kinds = (int, float) if isinstance(default, float) else type(default)
            assert isinstance(value, kinds), f"{key}={value!r}"
