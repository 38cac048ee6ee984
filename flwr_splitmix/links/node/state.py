"""Storage of a client's state on a SuperNode: a directory, or else Flower's context.

Every round of a deployment is a new process. A directory also outlives the Flower run, so a resumed
run finds the state that belongs to its checkpoint; `context.state` ends with the Flower run, and
keeps the newest run's state only.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context
from torch import Tensor

from flwr_splitmix.files.home import HOME, expanded, home_folder
from flwr_splitmix.files.writing import remove_unfinished
from flwr_splitmix.links.frames.codec import Frame, decode, encode
from flwr_splitmix.links.frames.payload import CodecError
from flwr_splitmix.links.host import StateStore
from flwr_splitmix.links.link import UNNAMED, LinkError
from flwr_splitmix.links.node.keys import STATE_DIR
from flwr_splitmix.links.node.owner import OWNER_FILE, check_owner
from flwr_splitmix.runs.checkpoints import ROUND_NAMES, ClientStore
from flwr_splitmix.storage import DIGEST, OtherFormError, digest

log = logging.getLogger("flwr.splitmix")

CONTEXT_BYTES = 64_000_000
"""Largest state that is kept in Flower's context, which travels with every message."""

FORGET_DAYS = 30.0
"""States of runs not used on this node for this many days are removed."""

FORGET_UNNAMED_DAYS = 3.0
"""The same for starts without a run, which nothing resumes; others may still be in progress."""

_RUN = re.compile(r"(?!.*\.(?i:jsonl))[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Names of directories, except names like those of the node's ledger and logs beside them."""

_UNNAMED = re.compile(rf"{UNNAMED}[0-9a-f]{{16}}")

_OF_FLOWER = re.compile(r"(?i:flwr)-\d+")

_KEY = "splitmix-state"


def node_folder(context: Context, *, absolute: bool = False) -> Path | None:
    """Return the directory for what outlives a round, creating it if needed.

    It is the node configuration's `state-dir`, else `nodes` below $SPLITMIX_HOME or ~/.splitmix.
    None if `state-dir` is "" or the directory cannot be created.

    Parameters
    ----------
    absolute
        Whether it must be the same directory wherever the SuperNode is started.

    Raises
    ------
    LinkError
        If it must, and the path is relative; if `state-dir` is no string; or if the path begins
        with the "~" of an unknown user, or of one without a home.
    """
    chosen = context.node_config.get(STATE_DIR)
    if chosen is None:
        folder = expanded(home_folder(), HOME, LinkError) / "nodes"
    elif chosen == "":
        return None
    elif isinstance(chosen, str):
        folder = expanded(chosen, STATE_DIR, LinkError)
    else:
        raise LinkError(
            f"this node's {STATE_DIR} is {chosen!r}; give the path of a folder, or '' for none"
        )
    if absolute and not folder.is_absolute():
        named = HOME if chosen is None else STATE_DIR
        raise LinkError(
            f"this node has a max-epsilon, and its {named} is a relative path, so that a SuperNode "
            "started in another folder would begin another privacy ledger: give an absolute path"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        log.warning(
            "%s cannot be written (%s): state goes into the context", folder, error.strerror
        )
        return None
    return folder


def flower_name(context: Context) -> str:
    """Return the name of a run whose server names none: that of Flower's run."""
    return f"flwr-{context.run_id}"


def run_name(run: str, context: Context) -> str:
    """Return the name of a run in this node's files.

    Parameters
    ----------
    run
        Id of the run, as sent by the server; "" uses Flower's run id.

    Raises
    ------
    LinkError
        If the id is not a plain directory name, or is the name of another of Flower's runs.
    """
    own = flower_name(context)
    run = run or own
    if not _RUN.fullmatch(run):
        raise LinkError("the server's run id is not a name of a directory")
    if run != own and _OF_FLOWER.fullmatch(run):
        raise LinkError(
            f"the server's ticket names run {run}, as a node names a run of Flower by its number, "
            f"and this is {own}: give the run another id"
        )
    return run


def open_store(run: str, key: str, context: Context) -> StateStore:
    """Return the store of this node's client states.

    Each run has its own directory below the node's. If there is none, the state goes into
    `context.state`, which only the same of Flower's runs gets.

    Parameters
    ----------
    run
        Id of the run, as sent by the server; "" uses Flower's run id.
    key
        Key of the run's states, which no other run's server knows.

    Raises
    ------
    LinkError
        As `run_name`; if the run's directory belongs to another run (see `check_owner`); or if the
        node's directory cannot be written and holds a state of this run: without it the client
        would begin anew.
    """
    run = run_name(run, context)
    if (folder := node_folder(context)) is None:
        return ContextStore(context, run)
    try:
        forget_runs(folder)
        (folder / run).mkdir(mode=0o700, exist_ok=True)
        check_owner(folder / run, key)
        os.utime(folder / run)
    except OSError as error:
        if any((folder / run).glob(f"*/{ROUND_NAMES}")):
            raise LinkError(
                f"this node's folder of states ({STATE_DIR}, by default below {HOME}) cannot be "
                f"written ({error.strerror}), and holds a state of this run: make it writable"
            ) from None
        log.warning(
            "%s cannot be written (%s): state goes into the context", folder, error.strerror
        )
        return ContextStore(context, run)
    return ClientStore(folder / run)


def forget_runs(folder: Path) -> None:
    """Remove the states of runs not used for a number of days, and nothing else.

    It is `FORGET_UNNAMED_DAYS` for starts without a run, otherwise `FORGET_DAYS`.
    """
    for run in folder.iterdir():
        days = FORGET_UNNAMED_DAYS if _UNNAMED.fullmatch(run.name) else FORGET_DAYS
        before = time.time() - days * 86_400
        # A directory with other files stays; another process may delete first.
        with contextlib.suppress(OSError):
            if run.is_dir() and not run.is_symlink() and run.stat().st_mtime < before:
                for file in run.glob(f"*/{ROUND_NAMES}"):
                    file.unlink()
                for client in run.glob("[0-9]*"):
                    remove_unfinished(client, ROUND_NAMES)
                    client.rmdir()
                remove_unfinished(run, OWNER_FILE)
                (run / OWNER_FILE).unlink(missing_ok=True)
                run.rmdir()
                log.info("states of run %s, not used for %g days, are deleted", run.name, days)


class ContextStore:
    """One client's newest state in a run, in `context.state`, as bytes without pickle."""

    def __init__(self, context: Context, run: str) -> None:
        self._state = context.state
        self._run = run

    def save(
        self, index: int, round: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
    ) -> None:
        """Save the state after `round`, replacing the previous one.

        Raises
        ------
        OSError
            If it cannot be encoded, in particular if it is too large.
        """
        payload = {
            "run": self._run,
            "client": index,
            "tensors": dict(tensors),
            "meta": dict(meta),
            DIGEST: digest(tensors, meta),
        }
        try:
            data = encode(Frame("state", round, payload=payload), max_body=CONTEXT_BYTES)
        except CodecError as error:
            raise OSError(errno.EFBIG, f"{error}; give the node a {STATE_DIR}") from None
        self._state[_KEY] = ConfigRecord({"frame": data})

    def load(
        self, index: int, at_most: int | None = None
    ) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Return this client's state in this run, if undamaged and of a round <= `at_most`.

        Raises
        ------
        OtherFormError
            If it has no digest: it may be whole, and what it has charged must not be forgotten.
        """
        record = self._state.config_records.get(_KEY)
        if record is None:
            return None
        try:
            frame = decode(record["frame"], CONTEXT_BYTES)  # type: ignore[arg-type]
            payload = frame.payload
            tensors, meta = payload["tensors"], payload["meta"]
            if (written := payload.get(DIGEST)) is None:
                whose = f"client {index}: its state in Flower's context"
                raise OtherFormError(whose, "has no digest")
            damaged = written != digest(tensors, meta)
        except (CodecError, LookupError, TypeError, AttributeError):
            damaged = True
        if damaged:
            log.warning(
                "client %d: its state in Flower's context is damaged; it begins anew", index
            )
            return None
        late = at_most is not None and frame.number > at_most
        if late or (payload["run"], payload["client"]) != (self._run, index):
            return None
        return frame.number, tensors, meta

    def drop_after(self, index: int, round: int) -> int:
        """Delete the state unless `load` returns it for a round <= `round`; count what is gone."""
        return int(self.load(index, round) is None and self._state.pop(_KEY, None) is not None)

    def prune(self, index: int, kept_rounds: Sequence[int]) -> None:
        """Do nothing: there is only one state."""
