"""Uses a method of the U shape by its name wherever methods are used; prints the results as JSON.

A process of its own, as the package that it imports may be another one than that of the tests.

    python -m tests.strategies.uses_of_a_ushape_method NAME FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from flwr_splitmix import strategies
from flwr_splitmix.cli import app
from flwr_splitmix.experiments.privacy.texts.rows import TEXT_ROWS
from flwr_splitmix.methods.tables import methods_table
from flwr_splitmix.testing.laws import (
    check_graphs_are_freed,
    check_resume_equals_uninterrupted,
    check_ushape_wire,
)
from flwr_splitmix.testing.toy_texts import text_toy
from tests.apps import language_app, ushape_fit
from tests.apps.app_config import APPS

RUN: dict[str, Any] = {"steps_per_round": 4, "num_server_rounds": 2}
OF_APPS: dict[str, dict[str, Any]] = {
    "language": {**language_app.TINY, **RUN, "evaluation": "benchmark"},
    "vision": {**ushape_fit.ONE_STEP, **RUN},
}


def laws(name: str, folder: Path) -> None:
    """Run the laws of the U shape that hold of any noise."""
    kind = getattr(strategies, name)
    check_ushape_wire(kind, text_toy(name, tests=6))
    check_graphs_are_freed(kind, text_toy(name, clients=1), many=120)
    check_resume_equals_uninterrupted(kind, folder, text_toy(name, clients=2))


def checked(name: str, which: str) -> dict[str, Any]:
    """Return what `splitmix check` says of an app's run."""
    values = {**OF_APPS[which], "strategy": name}
    keys = " ".join(f"{key.replace('_', '-')}={json.dumps(v)}" for key, v in values.items())
    arguments = [
        "check",
        str(APPS / which),
        "--nodes",
        "2",
        "--format",
        "json",
        "--run-config",
        keys,
    ]
    result = CliRunner().invoke(app, arguments)
    return {"exit": result.exit_code, **json.loads(result.stdout)}


def spent(name: str, which: str, folder: Path) -> float:
    """Return what the clients of an app's run say that they have spent."""
    fit: Any = {"language": language_app.fit, "vision": ushape_fit.fit}[which]
    fitted = fit(folder / which, **{**OF_APPS[which], "strategy": name})
    return float(fitted.rows[-1]["train_epsilon"])


def shown(folder: Path) -> list[str]:
    """Return the lines of the vision run."""
    arguments = ["show", "latest", "--run-dir", str(folder / "vision")]
    return CliRunner().invoke(app, arguments).stdout.splitlines()


if __name__ == "__main__":
    name, folder = sys.argv[1], Path(sys.argv[2])
    laws(name, folder / "laws")
    uses = {
        "package": strategies.__file__,
        "spent": {which: spent(name, which, folder) for which in OF_APPS},
        "checked": {which: checked(name, which) for which in OF_APPS},
        "shown": shown(folder),
        "matrix": [row.method for row in TEXT_ROWS.values()],
        "rows": [line for line in methods_table("U").splitlines() if f"`{name}`" in line],
    }
    print(json.dumps(uses))
