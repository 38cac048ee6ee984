"""A run with trackers in a process of its own, which prints the hosts that it looked up.

python -m tests.observers.trackers.looked_up TRACKERS FOLDER
"""

from __future__ import annotations

import atexit
import socket
import sys
from pathlib import Path
from typing import Any

from flwr_splitmix.observers.trackers import make_trackers
from flwr_splitmix.strategies import PSL
from tests.toy_runs import add_run


def main() -> None:
    hosts: set[str] = set()
    look_up = socket.getaddrinfo

    def noting(host: Any, *arguments: Any, **options: Any) -> Any:
        hosts.add(str(host))
        return look_up(host, *arguments, **options)

    socket.getaddrinfo = noting
    # Registered first, so that it prints what the libraries do at the end of the process, too.
    atexit.register(lambda: print("looked up:", *sorted(hosts)))
    add_run(Path(sys.argv[2]), PSL, observers=tuple(make_trackers(sys.argv[1])))


if __name__ == "__main__":
    main()
