"""A copy of the package to which a method was added by the steps of CONTRIBUTING.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Copy:
    """A folder with the package, whose files are links until they are changed."""

    def __init__(self, home: Path) -> None:
        self.home, self.package = home, home / "flwr_splitmix"
        shutil.copytree(
            ROOT / "flwr_splitmix",
            self.package,
            copy_function=os.symlink,
            ignore=shutil.ignore_patterns("__pycache__"),
        )

    def add(self, file: str, text: str) -> None:
        """Add a file to the package."""
        (self.package / file).write_text(text, encoding="utf-8")

    def insert(self, file: str, text: str, *, before: str) -> None:
        """Insert text into a file, before what it has in one place."""
        path = self.package / file
        first, separator, rest = path.read_text(encoding="utf-8").partition(before)
        assert separator, (file, before)
        path.unlink()  # a link to the one of this tree
        path.write_text(f"{first}{text}{separator}{rest}", encoding="utf-8")

    def uses(self, module: str, name: str) -> dict[str, Any]:
        """Return what a module of these tests prints of the method, as JSON, in a process."""
        elsewhere = self.home / "elsewhere"
        elsewhere.mkdir()
        process = subprocess.run(
            [sys.executable, "-m", f"tests.strategies.{module}", name, str(elsewhere)],
            cwd=elsewhere,  # Python looks there first
            env={**os.environ, "PYTHONPATH": f"{self.home}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr
        uses: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        assert Path(uses["package"]).is_relative_to(self.home)
        return uses
