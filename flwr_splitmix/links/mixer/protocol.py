"""The protocol between the ServerApp and a mixer.

A ServerApp opens one stream per round, with the mixer's token. It sends `call` frames (number: from
1; text: the call's name; payload: its arguments), one at a time, and gets a `reply` or an `error`
(text: the reason) to each. A mixer answers these calls and no others; none of them returns what a
single node sent.

======== ======================================== ==============================================
call     arguments                                reply
======== ======================================== ==============================================
open     `Opening`: the round, the mixing, nodes  "tokens": by client, the token to attach with
attach   "gone": by client, why it is not coming  "waiting": clients still to come; "failures"
begin    none                                     the mixtures' shape, "groups", "failures", "spent"
step     "number", "progress", "gradients"        "mixtures": by group; "failures"; "spent"
finish   "number", "progress", "gradients"        "failures"; with noise "account": `RunAccount`
close    none                                     empty; clients have been asked to finish
======== ======================================== ==============================================

Groups are numbered from 0; as keys of dictionaries, clients and groups are strings. "failures"
holds new failures, client -> reason; "spent" is how many nodes have no privacy budget left.
"""

from __future__ import annotations

import stat
from pathlib import Path

from flwr_splitmix.files.home import expanded
from flwr_splitmix.links.link import LinkError

METHOD = "/flwr_splitmix.Mixer/Serve"
PROTOCOL = 3

TOKEN_KEY = "splitmix-mixer-token"
PROTOCOL_KEY = "splitmix-mixer-protocol"

MIN_TOKEN = 32
"""Fewest characters of a mixer's token."""


def read_secret(path: str | Path, name: str) -> str:
    """Read a file with one word, which only its owner may access.

    Parameters
    ----------
    name
        The configuration key or command-line option that names the file.

    Raises
    ------
    LinkError
        If it cannot be read, others may access it, or it does not hold exactly one word; the
        message names `name`.
    """
    path = expanded(path, name, LinkError)
    try:
        text = path.read_text("utf-8", "replace").strip()
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise LinkError(f"{name}: {path} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise LinkError(
            f"{name}: others on this machine may read or change {path} (mode {mode:04o}); keep it "
            f"to its owner (chmod 600 {path}), and make a new one if somebody may have read it"
        )
    if not text or not text.isprintable() or " " in text:
        raise LinkError(f"{name}: {path} must hold one word on one line, and nothing else")
    return text


def read_token(path: str | Path, name: str) -> str:
    """Read a mixer's token from its file.

    Raises
    ------
    LinkError
        As `read_secret`, or if it is not ASCII or too short.
    """
    token = read_secret(path, name)
    if len(token) < MIN_TOKEN or not token.isascii():
        raise LinkError(
            f"{name}: {path} holds {len(token)} characters; a token has at least {MIN_TOKEN}, "
            "of ASCII (openssl rand -hex 32)"
        )
    return token
