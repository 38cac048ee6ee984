"""apps/vision as modules of the test's own process: the app is not in the wheel."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.app import Context, RecordDict

APP = Path(__file__).resolve().parents[2] / "apps" / "vision"


@cache
def module(name: str) -> ModuleType:
    """Import one file of the app; its own imports find the app's other files."""
    if str(APP) not in sys.path:
        sys.path.append(str(APP))
    if name == "vision_config":
        return importlib.import_module(name)
    # Other apps have a server_app and a client_app too: each gets a name of its own.
    spec = importlib.util.spec_from_file_location(f"splitmix_vision_{name}", APP / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def run_config(**overrides: Any) -> dict[str, Any]:
    """Return the app's run configuration with some keys changed (`_` for `-`)."""
    app = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    changed = {name.replace("_", "-"): value for name, value in overrides.items()}
    return {**app["config"], **changed}


def context(client: int, num_clients: int, config: dict[str, Any]) -> Context:
    """Return what Flower hands to a client_fn."""
    return Context(
        run_id=1,
        node_id=client + 1,
        node_config={"partition-id": client, "num-partitions": num_clients},
        state=RecordDict(),
        run_config=config,
    )


class Nodes:
    """A grid that knows nothing but its nodes: each look finds one more, up to `number`."""

    def __init__(self, number: int, at_first: int | None = None) -> None:
        self.number = number
        self.there = number if at_first is None else at_first

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes that are there now."""
        there, self.there = self.there, min(self.there + 1, self.number)
        return list(range(100, 100 + there))
