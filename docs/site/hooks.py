"""What mkdocs is told beside mkdocs.yml: the start page, the API's pages, links out of docs/."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "flwr_splitmix"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)")

HREF = re.compile(r'(?<=href=")(?![a-z]+:|#|/)([^"#]+\.md)(?=["#])')

ROOMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "strategies": (
        "Strategies",
        (
            "strategies/*.py",
            "server/rounds/training_loop.py",
            "server/rounds/setup.py",
            "server/rounds/hooks.py",
            "server/rounds/loop.py",
            "server/rounds/state.py",
            "schedule.py",
            "optimizers.py",
            "server/steps/pace.py",
            "server/evaluation/central.py",
        ),
    ),
    "clients": (
        "Clients",
        (
            "clients/split/client.py",
            "clients/ushape/client.py",
            "clients/ushape/mixguard_client.py",
            "clients/ushape/ends_client.py",
            "clients/guards/privacy_budget.py",
            "clients/ushape/local_inference.py",
            "description/*.py",
            "client_app.py",
        ),
    ),
    "segments": (
        "Segments",
        ("segments/geometry.py", "segments/vision/*.py", "segments/language/*.py"),
    ),
    "mixers": ("Mixers", ("mixers/*.py",)),
    "hiding": ("Hiding", ("hiding/*.py", "hiding/*/*.py")),
    "privacy": ("Privacy", ("privacy/*.py",)),
    "data": ("Data", ("data/*.py", "data/*/*.py")),
    "links": (
        "Links",
        (
            "links/link.py",
            "links/auto.py",
            "links/local.py",
            "links/ray/link.py",
            "links/stream/link.py",
            "links/mixer/link.py",
        ),
    ),
    "observers": ("Observers", ("events.py", "observers/*.py", "observers/trackers/*.py")),
    "attacks": ("Attacks", ("attacks/*.py", "attacks/*/*.py")),
    "runs": ("Runs and exported models", ("runs/*.py", "runs/export/*.py")),
    "testing": ("Laws", ("testing/*.py",)),
}
"""Pages of the API reference: title, and the files of the package that are on it."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are in no file: the README as the start, and the API reference."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    made = {"index.md": LINK.sub(lambda match: _from_top(match[1], config), readme)}
    for name, (title, patterns) in ROOMS.items():
        made[f"api/{name}.md"] = _page(title, patterns)
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Have links to files outside docs/ lead into the repository."""
    if page.file.src_uri == "index.md" or page.file.src_uri.endswith(".ipynb"):
        return markdown
    return LINK.sub(lambda match: _from_docs(match[1], page.file.src_uri, config), markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Have links of notebooks lead to the site's pages: mkdocs sees those of Markdown only."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return HREF.sub(lambda match: _from_notebook(match[1], page, files), html)


def _from_notebook(target: str, page: Any, files: Files) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target))
    file = files.get_file_from_path(path)
    if file is None:
        raise FileNotFoundError(f"{page.file.src_uri} links to {target}, which is not there")
    return str(file.url_relative_to(page.file))


def _from_top(target: str, config: Any) -> str:
    return target.removeprefix("docs/") if target.startswith("docs/") else _there(target, config)


def _from_docs(target: str, page: str, config: Any) -> str:
    """Return where a link of a page leads on the site; one that stays in docs/ is left as it is."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    if path.startswith("docs/"):
        return target
    if path == "README.md":
        return posixpath.relpath("index.md", posixpath.dirname(page) or ".")
    return _there(path, config)


def _there(path: str, config: Any) -> str:
    if not (ROOT / path).exists():
        raise FileNotFoundError(f"a page links to {path}, which is not there")
    return f"{config['repo_url']}/blob/main/{path}"


def _page(title: str, patterns: tuple[str, ...]) -> str:
    """Return a page that mkdocstrings fills with the docstrings of modules."""
    files = [file for pattern in patterns for file in _modules(pattern)]
    modules = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in files
        if not file.name.startswith("_")
    ]
    return f"# {title}\n\n" + "\n".join(f"::: {module}\n" for module in modules)


def _modules(pattern: str) -> list[Path]:
    files = sorted(PACKAGE.glob(pattern))
    if not files:
        raise FileNotFoundError(f"the API reference names {pattern}, and no module is there")
    return files
