"""The first weights that a server sent in a run, where it may not replace them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.run_id import run_id
from flwr_splitmix.privacy.journal import WAIT, Journal, JournalError, read_journal, reason_of


class FirstWeights:
    """Refuses a run's later weights if they differ from the first ones.

    A run that is restarted sends the same weights again; other ones come from averaging, or were
    crafted by the server.

    Parameters
    ----------
    path
        The node's file, which outlives the process of a single message; None keeps the record in
        this process.
    run
        Identifies the run; only its `run_id` counts, as for the client's state.
    """

    def __init__(self, path: Path | None = None, run: str = "") -> None:
        self._path, self._run, self._first = path, run_id(run), ""

    @classmethod
    def on_node(cls, folder: Path | None, index: int, run: str) -> FirstWeights:
        """Return the record of a node's client in the node's folder, if it has one."""
        return cls(None if folder is None else folder / f"first-weights-{index}.jsonl", run)

    def forget(self) -> None:
        """Begin another run of this process; a node's file distinguishes its runs itself."""
        self._first = ""

    def check(self, arrays: Mapping[str, Tensor] | None, allowance: str) -> None:
        """Record a run's first weights, or that it began with none; refuse others.

        Parameters
        ----------
        arrays
            The weights, in the dtypes in which they will be loaded; None if the client keeps its
            own, which any run may.
        allowance
            The option that refuses others, with its value.

        Raises
        ------
        ClientError
            If these are not the first ones, or the node's file cannot be read or written.
        """
        digest = digest_of(arrays or {})
        try:
            first = self._recorded(digest)
        except (OSError, JournalError) as error:
            lacks = "takes none" if arrays is not None else "takes no part"
            raise ClientError(
                f"this client has {allowance}, and its node cannot record a run's first weights, "
                f"or that there were none ({reason_of(error)}), so it {lacks}"
            ) from None
        if first != digest and arrays is not None:
            raise ClientError(
                f"this client has {allowance}, and the server sends other weights within "
                "the run; that is averaging, which must be allowed (a node: allow-averaging)"
            )

    def _recorded(self, digest: str) -> str:
        """Return the digest recorded for this run, recording this one if none is."""
        if self._path is None:
            self._first = self._first or digest
            return self._first
        with closing(Journal(self._path, wait=WAIT)) as journal:
            # All runs stay on record: a server could begin another one in between.
            for entry in read_journal(self._path):
                if run_id(entry["run"]) == self._run:
                    return str(entry["weights"])
            journal.append({"run": self._run, "weights": digest})
            return digest


def digest_of(arrays: Mapping[str, Tensor]) -> str:
    """Return a digest of weights by name."""
    digest = blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(name.encode())
        # A copy, as of arrays without numbers, or with stride 0, no bytes can be viewed.
        numbers = arrays[name].detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
        digest.update(numbers.view(torch.uint8).numpy().tobytes() if len(numbers) else b"")
    return digest.hexdigest()
