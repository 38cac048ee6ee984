"""The keys of a node's configuration that this package reads, and how others may be spelt."""

from __future__ import annotations

from collections.abc import Iterable

from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.stream.pairs import CERTIFICATE, KEY
from flwr_splitmix.privacy.policy import KEYS as POLICY_KEYS
from flwr_splitmix.privacy.policy import POLICY
from flwr_splitmix.suggestions import folded_key, is_near

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
    "epsilon": "max-epsilon",
    "maxeps": "max-epsilon",
    "maximumepsilon": "max-epsilon",
    "alloweval": "allow-evaluation",
    "allowavg": "allow-averaging",
    "allowaverage": "allow-averaging",
    "allowbench": "allow-benchmark",
    "allowplaintext": "allow-plain",
    "allowtrain": "allow-training",
    "allowspread": "allow-spreading",
    "linkinsecure": "allow-insecure",
}
"""Other forms of our keys, folded."""

_OWN = ("statsdir", "stagedir")
"""Likely keys of apps, folded, that are one letter away from one of ours."""


def check_keys(keys: Iterable[str]) -> None:
    """Refuse a node's configuration with a key that resembles one of ours but is not.

    Other keys are the app's own.

    Raises
    ------
    LinkError
        If there is such a key; the message names it and what was probably meant.
    """
    for key in keys:
        if key not in (*OPTIONAL, INDEX) and (likely_key := _likely_key(key)):
            raise LinkError(
                f"this node's configuration has {key!r}, which flwr-splitmix does not read, so the "
                f"node would be without what it seems to mean; did you mean {likely_key!r}? An "
                "app's own key needs a name less like it"
            )


def _likely_key(key: str) -> str:
    """Return the key that another one seems to mean, or ""."""
    folded = folded_key(key)
    if folded in _OWN:
        return ""
    near = (option for option in OPTIONAL if is_near(folded, folded_key(option)))
    return _ALIASES.get(folded) or next(near, "")
