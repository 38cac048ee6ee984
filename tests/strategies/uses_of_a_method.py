"""Runs a method by its name wherever methods are used, and prints the results as JSON.

A process of its own, as the package that it imports may be another one than that of the tests.

    python -m tests.strategies.uses_of_a_method NAME FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from flwr_splitmix import strategies
from flwr_splitmix.cli import app
from flwr_splitmix.methods import BY_NAME
from flwr_splitmix.methods.tables import methods_table, options_table
from flwr_splitmix.runs import Run
from flwr_splitmix.testing.laws import Toy, check_split_equals_whole, check_wire
from tests.apps.vision_fit import fit
from tests.laws.makers import NAMES, maker, toy_for


def laws(name: str) -> list[str]:
    """Run two of the laws; returns what all of them are run over."""
    check_split_equals_whole(maker(name), toy_for(name))
    check_wire(maker(name), toy_for(name))
    return NAMES


def loss_of(name: str) -> float:
    toy = Toy()
    strategy = getattr(strategies, name)(toy.upper(), device="cpu")
    strategy.fit(toy.make_clients(), 2)  # clients that are given no shares besides their own
    return float(strategy.rows[-1]["loss"])


def app_run(name: str, folder: Path) -> dict[str, Any]:
    fitted = fit(folder / "app", strategy=name)
    return {"strategy": type(fitted.strategy).__name__, "steps": fitted.row["steps"]}


def experiment(name: str, folder: Path) -> dict[str, Any]:
    options = ["--scale", "smoke", "--epochs", "1", "--cells", name, "--run-dir", str(folder)]
    result = CliRunner().invoke(app, ["experiment", "run", "methods", *options])
    (run,) = Run.all(folder)
    return {"exit": result.exit_code, "strategy": run.config["strategy"], "status": run.status}


def table_rows(name: str) -> list[str]:
    lines = [*methods_table("L").splitlines(), *options_table().splitlines()]
    return [line for line in lines if f"`{name}`" in line]


if __name__ == "__main__":
    name, folder = sys.argv[1], Path(sys.argv[2])
    uses = {
        "package": strategies.__file__,
        "laws": laws(name),
        "losses": {each: loss_of(each) for each in BY_NAME[name].names},
        "app": app_run(name, folder),
        "experiment": experiment(name, folder / "experiment"),
        "rows": table_rows(name),
    }
    print(json.dumps(uses))
