"""Names of files that another file lists: they must stay in that file's folder."""

from __future__ import annotations

import re


def is_bare(name: object) -> bool:
    r"""Return whether something is a file's name alone, without a folder: no "..", "/" or "\"."""
    return isinstance(name, str) and name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)
