"""Stored results of a toy's run, at the server and on the nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from flwr_splitmix import Run
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.testing.agreement import Results, read_results

CLIENTS = 4
"""Number of clients of every toy whose runs are compared."""


def results(run: Run, nodes: Path) -> Results:
    """Read what the server and the nodes have stored of a run."""
    kept_by_server = read_results(run)
    tensors = dict(kept_by_server.tensors)
    store = ClientStore(nodes / run.id)
    for index in range(CLIENTS):
        state = store.load(index)
        assert state is not None
        tensors |= {f"client {index}: {name}": t for name, t in state[1].items()}
        tensors[f"client {index}: batches drawn"] = torch.tensor(state[2]["drawn"])
    return replace(kept_by_server, tensors=tensors)
