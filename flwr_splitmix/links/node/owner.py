"""The owner of a run's states on a node: the run itself, by a key that its tickets carry.

A ticket names any run it likes. Without the key, a server that names another's could have the
client's segment of that run, or delete its states.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from pathlib import Path

from flwr_splitmix.files.writing import write_new
from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.node.keys import STATE_DIR
from flwr_splitmix.runs.checkpoints import ROUND_NAMES

OWNER_FILE = "owner"
"""Name of the file with the key's SHA-256 in a run's folder of states; clients' are numbers."""


def check_owner(folder: Path, key: str) -> None:
    """Let the first key own a run's folder of states; refuse any other.

    Parameters
    ----------
    folder
        The run's folder, named by its id.
    key
        The key of the ticket's run.

    Raises
    ------
    LinkError
        If the ticket has no key or not the owner's, or the folder has states and no owner.
    OSError
        If the owner cannot be read or written.
    """
    if not key:
        raise LinkError(
            "the server's ticket has no state_key, by which a node knows the run again; install "
            "the same flwr-splitmix on both"
        )
    # States first: another process of the run may become the owner and save some in between.
    has_states = any(folder.glob(f"*/{ROUND_NAMES}"))
    path, own = folder / OWNER_FILE, sha256(key.encode()).hexdigest().encode()
    if path.exists() and not path.stat().st_size and not has_states:
        path.unlink()  # a process was killed while it wrote it
    if not path.exists():
        if has_states:
            raise LinkError(
                f"the states of run {folder.name} on this node do not say whose they are, as an "
                f"earlier version wrote them: start a new run, or remove {folder.name} from the "
                f"node's {STATE_DIR}, and its client begins anew"
            )
        write_new(path, own)
    if not secrets.compare_digest(path.read_bytes(), own):
        raise LinkError(
            f"the states of run {folder.name} on this node belong to another run: give this one "
            "another id. If it is the same run and has lost its state-key, restore that, or remove "
            f"{folder.name} from the node's {STATE_DIR}, and its client begins anew"
        )
