"""Command that makes the tables of methods from the catalogue.

python -m flwr_splitmix.methods                                        # prints them
python -m flwr_splitmix.methods docs/methods.md docs/configuration.md  # renews them there

Each table stands between the comments of its name, as `tables.renewed` says.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flwr_splitmix.methods.tables import TABLES, renewed

if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
    if not sys.argv[1:]:
        print("\n\n".join(make() for make in TABLES.values()))
