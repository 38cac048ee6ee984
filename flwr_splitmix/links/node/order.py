"""The secret from which a node that uploads to a mixer only draws the order of its examples.

Soft labels show the classes in each row of a mixture. A server that knew which example of which
node is in which row, as it would with an order drawn from the run's seed, could read the class of
each example, and the members of each group.
"""

from __future__ import annotations

import logging
import secrets
from hashlib import blake2b
from pathlib import Path

from flwr.app import ConfigRecord, Context

from flwr_splitmix.files.writing import write_new
from flwr_splitmix.links.link import LinkError

log = logging.getLogger("flwr.splitmix")

SECRET_FILE = ".order-secret"
"""Name of the secret's file in the node's folder; no run's directory has such a name."""

_SECRET_BYTES = 32

_RECORD, _VALUE = "splitmix-order", "secret"


def order_key(folder: Path | None, context: Context, run: str, index: int) -> bytes:
    """Return the key of the order of a client's examples in a run (32 bytes).

    It is the same in all processes of the node, in resumed runs, and in rounds that are repeated,
    as the ledger of such a round needs it. The node's secret is in its folder, else in Flower's
    context.

    Parameters
    ----------
    folder
        The node's folder; None if it has none.
    run, index
        The run's id, and the client's index.

    Raises
    ------
    LinkError
        If the folder's file does not hold a secret.
    """
    secret = None if folder is None else _of_folder(folder)
    if secret is None:
        secret = _of_context(context)
    return blake2b(f"{index}:{run}".encode(), key=secret, digest_size=_SECRET_BYTES).digest()


def _of_folder(folder: Path) -> bytes | None:
    """Return the folder's secret, made if there is none; None if it cannot be read or written."""
    path = folder / SECRET_FILE
    try:
        if not path.exists():
            write_new(path, secrets.token_bytes(_SECRET_BYTES))
        secret = path.read_bytes()
    except OSError as error:
        log.warning(
            "%s cannot be kept (%s): the order of this node's examples is of this run only",
            path,
            error.strerror,
        )
        return None
    if len(secret) != _SECRET_BYTES:
        raise LinkError(
            f"{SECRET_FILE} in this node's state-dir is damaged: delete it; runs that are not "
            "finished continue with their examples in another order"
        )
    return secret


def _of_context(context: Context) -> bytes:
    record = context.state.config_records.get(_RECORD)
    if record is None:
        record = ConfigRecord({_VALUE: secrets.token_bytes(_SECRET_BYTES)})
        context.state[_RECORD] = record
    secret = record[_VALUE]
    assert isinstance(secret, bytes)
    return secret
