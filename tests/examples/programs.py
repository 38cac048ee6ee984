"""Programs and files that stand in README.md and docs/."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def readme_files() -> dict[str, str]:
    """Return the code blocks of the README that stand under a file name in bold."""
    files = re.findall(r"^\*\*`([\w.]+)`\*\*\n\n```\w+\n(.*?)^```$", page("README.md"), re.S | re.M)
    return dict(files)


def program(name: str, part: str) -> str:
    """Return the block of Python of a page that contains a part."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page(name), re.S | re.M)
    (block,) = (block for block in blocks if part in block)
    return str(block)
