"""The README as the package index shows it; everything else is in pyproject.toml.

An index knows no other file of the repository, so that the README's links to them become links to
the repository, as it was at this version's tag.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
LINK = re.compile(r"(!?)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def absolute(readme: str, repository: str, tag: str) -> str:
    """Return a README whose relative links lead into a repository at a tag."""

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}[{match[2]}]({repository}/{kind}/{tag}/{match[3]})"

    return LINK.sub(link, readme)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=absolute(
            (HERE / "README.md").read_text(encoding="utf-8"),
            project["urls"]["Repository"],
            f"v{project['version']}",
        ),
        long_description_content_type="text/markdown",
    )
