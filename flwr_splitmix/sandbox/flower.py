"""A private simulation: a Flower app run as by `flwr run`, with nothing left behind.

`python -m flwr_splitmix.sandbox.flower APP --nodes 10 --run-config "..."` starts a SuperLink on a
free port with its own FLWR_HOME, runs the app, shows its log, and ends all processes it started.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from flwr_splitmix.flwr_command import config_text
from flwr_splitmix.sandbox.superlink import (
    SandboxError,
    SuperLink,
    app_parser,
    chosen_run_config,
    end_as_if_asked,
)

__all__ = ["LocalFlower", "SandboxError", "main"]


class LocalFlower(SuperLink):
    """A simulation SuperLink on a free port of this machine, as a context manager."""

    def _start(self) -> None:
        self._start_superlink(["--insecure", "--simulation"], "insecure = true")

    def submit(
        self, app: Path, run_config: str = "", nodes: int = 10, cpus: int = 1, **federation: Any
    ) -> int:
        """Start a run with `nodes` virtual SuperNodes; return Flower's run id.

        `cpus` is the number of CPUs of a virtual client; `federation` has further settings of the
        federation, with underscores for hyphens.
        """
        settings = {"num-supernodes": nodes, "client-resources-num-cpus": cpus}
        settings |= {name.replace("_", "-"): value for name, value in federation.items()}
        return self.flwr.start(app, run_config, ["--federation-config", config_text(settings)])


def main() -> int:
    """Run an app on its own SuperLink; return 0 only if the run completed."""
    parser = app_parser("Run a Flower app on a SuperLink of its own.", nodes=2)
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of a virtual client")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end_as_if_asked)
    with LocalFlower() as flower:
        run_id = flower.submit(options.app, chosen_run_config(options), options.nodes, options.cpus)
        return flower.show(run_id)


if __name__ == "__main__":
    sys.exit(main())
