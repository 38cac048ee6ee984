"""A node's record of the test examples that it has sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.run_id import run_id
from flwr_splitmix.privacy.journal import JournalError, SharedJournal, read_journal, reason_of


class SentTests:
    """A node's record of the test examples already sent; it outlives the process of one message.

    It goes by head and tail, which the client knows, and not by the round, which the server names.
    The server names the run, too, but an honest second run begins with the weights of the first.
    All runs stay on record, as a server could begin another one in between.

    Parameters
    ----------
    path
        The file.
    run
        Identifies the run; only its `run_id` counts.
    weights
        Returns a digest of the client's head and tail as they are now.

    Raises
    ------
    ClientError
        If the file cannot be written, or is damaged.
    """

    def __init__(self, path: Path, run: str, weights: Callable[[], str]) -> None:
        self._run, self._weights = run_id(run), weights
        self._stops: dict[tuple[str, str, str], int] = {}
        with _noted():
            self._journal = SharedJournal(path, durable=False)
            with self._journal.held() as journal:
                if self._read() > len(self._stops):  # only the last entry of a pass counts
                    journal.replace([self._entry(key) for key in self._stops])
                self._journal.note_seen()

    def _read(self) -> int:
        """Read what any process has recorded; return the number of entries."""
        entries = read_journal(self._journal.path)
        for entry in entries:
            try:
                key = run_id(entry["run"]), entry["weights"], entry["kind"]
                self._stops[key] = max(entry["stop"], self._stops.get(key, 0))
            except KeyError as error:
                path = self._journal.path
                raise JournalError(
                    f"{path.name} has a line without {error}, which this version of flwr-splitmix "
                    "does not write: move the file away when its runs have ended"
                ) from error
        return len(entries)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the file, so that no other process sends examples between a check and a note.

        Raises
        ------
        ClientError
            If the file cannot be read or written: then nothing may be sent.
        """
        with _noted(), self._journal.held():
            if self._journal.changed:
                self._read()
                self._journal.note_seen()
            yield

    def sent(self, kind: str) -> int:
        """Return how many examples of a kind were sent in this run under this head and tail."""
        return self._stops.get((self._run, self._weights(), kind), 0)

    def note(self, kind: str, stop: int) -> None:
        """Record that examples up to `stop` are sent; raises as `held`."""
        key = self._run, self._weights(), kind
        with self.held():
            self._stops[key] = stop
            self._journal.append(self._entry(key))
            self._journal.note_seen()

    def _entry(self, key: tuple[str, str, str]) -> dict[str, Any]:
        run, weights, kind = key
        return {"run": run, "weights": weights, "kind": kind, "stop": self._stops[key]}


@contextmanager
def _noted() -> Iterator[None]:
    try:
        yield
    except (OSError, JournalError) as error:
        message = f"test examples cannot be noted on this node: {reason_of(error)}"
        raise ClientError(message) from None
