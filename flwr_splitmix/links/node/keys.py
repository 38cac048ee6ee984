"""The keys of a node's configuration that this package reads, and how others may be spelt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.stream.pairs import CERTIFICATE, KEY
from flwr_splitmix.privacy.policy import KEYS as POLICY_KEYS
from flwr_splitmix.privacy.policy import POLICY

INDEX = "partition-id"
"""Index of the node's client, without which no node takes part."""

STATE_DIR = "state-dir"
"""Directory for what outlives a round; "" for none."""

MIXER, MIXER_CA = "link-via", "link-via-ca"
"""Address of the only mixer that the node dials, and the authority of its certificate."""

OPTIONAL = (STATE_DIR, CERTIFICATE, KEY, MIXER, MIXER_CA, POLICY, *POLICY_KEYS)
"""Keys without which a node takes part all the same, unprotected by them."""

_ALIASES = {
    "eps": "max-epsilon",
    "maxeps": "max-epsilon",
    "alloweval": "allow-evaluation",
    "allowavg": "allow-averaging",
}
"""Common short forms, folded, that no measure of likeness finds."""

_LIKENESS = 0.82
"""Least ratio of `difflib` of two keys, folded, of which one may be the other misspelt."""


def check_keys(keys: Iterable[str]) -> None:
    """Refuse a node's configuration with a key that looks like one of ours and is none.

    Other keys are the app's own.

    Raises
    ------
    LinkError
        If there is such a key; the message names it and what was probably meant.
    """
    for key in keys:
        if key not in (*OPTIONAL, INDEX) and (meant := _meant(key)):
            raise LinkError(
                f"this node's configuration has {key!r}, which nothing reads, so the node would be "
                f"without what it seems to mean; did you mean {meant!r}? An app's own key needs a "
                "name less like it"
            )


def _meant(key: str) -> str:
    """Return the key that another one seems to mean, or ""."""
    folded = {_fold(known): known for known in OPTIONAL} | _ALIASES
    near = difflib.get_close_matches(_fold(key), folded, n=1, cutoff=_LIKENESS)
    return folded[near[0]] if near else ""


def _fold(key: str) -> str:
    return key.casefold().replace("-", "").replace("_", "")
