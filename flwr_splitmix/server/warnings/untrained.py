"""A run in which nothing is trained, as all weights are frozen."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import nn

from flwr_splitmix.clients import Client

log = logging.getLogger("flwr.splitmix")


def warn_if_frozen(name: str, module: nn.Module, clients: Sequence[Client], theirs: str) -> None:
    """Log that nothing is trained, if neither the server's module nor a client has weights for it.

    Parameters
    ----------
    name, theirs
        The names of the server's module and of the clients'.
    clients
        Those of this process; if empty, nothing is known of the clients' weights.
    """
    if not clients or any(weight.requires_grad for weight in module.parameters()):
        return
    if any(True for client in clients for _ in client.trainable_parameters()):
        return
    log.warning(
        "nothing is trained: the %s and the clients' %s have no weights, or only frozen ones; call "
        ".requires_grad_(True) on what should learn before you make clients and strategy",
        name,
        theirs,
    )
