"""A node in a process of its own: takes a ticket from each line of its input, and serves it."""

from __future__ import annotations

import json
import sys

from flwr_splitmix.links.ticket import Ticket
from tests.links.stream.peers import good

if __name__ == "__main__":
    for line in sys.stdin:
        order = json.loads(line)
        good(Ticket(**order["ticket"]), order["node"])
