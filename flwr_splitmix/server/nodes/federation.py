"""The nodes that a run was begun with: a resumed one needs the same kind, and as many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_splitmix.runs import RunError
from flwr_splitmix.words import counted

_KEY = "virtual-nodes"


class Federation:
    """Compares the virtual nodes of a simulation with those of the rounds before.

    A virtual node's data depend on how many there are, and SuperNodes have data of their own: a
    run resumed with others would train, and account for, other data under the same names.
    """

    def __init__(self) -> None:
        self._before: int | None = None
        self._now: int | None = None

    def restore(self, meta: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's plain values."""
        self._before, self._now = meta.get(_KEY), None

    def state(self) -> dict[str, int]:
        """Return the plain values that a checkpoint keeps; none for clients in this process."""
        return {} if self._now is None else {_KEY: self._now}

    def check(self, virtual_nodes: int | None, run: str) -> None:
        """Check the nodes of a run when they are first known.

        Parameters
        ----------
        virtual_nodes
            Number of virtual nodes, 0 with SuperNodes; None if the clients are in this process.
        run
            The run's id, for the message.

        Raises
        ------
        RunError
            If the run was begun with another number of virtual nodes, or with the other kind.
        """
        if self._now is not None or virtual_nodes is None:
            return
        self._now = virtual_nodes
        if self._before in (None, virtual_nodes):
            return
        began = _named(self._before or 0)
        if not virtual_nodes or not self._before:
            remedy = (
                "resume it where it was begun, or start a new run (or give the run-dir of yours)"
            )
        else:
            remedy = (
                f"their data would be divided anew: give --nodes {self._before} (splitmix run) or "
                f"--federation-config 'num-supernodes={self._before}' (flwr run), or start a new "
                "run"
            )
        raise RunError(
            f"run {run} was begun with {began}, and here are {_named(virtual_nodes)}: {remedy}"
        )


def _named(virtual_nodes: int) -> str:
    return counted(virtual_nodes, "virtual client") if virtual_nodes else "SuperNodes"
