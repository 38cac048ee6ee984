"""Which of a round's nodes may be mixed: those that the ServerApp has given the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flwr_splitmix.links.node.given import ORDERS, WEIGHTS

_NAMES = {WEIGHTS: "another lower segment", ORDERS: "another configuration or ticket"}


def unlike(descriptions: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Return the nodes that must not be mixed with the others, each with the reason.

    The largest set of nodes that were given the same may be mixed; of several, the one with the
    smallest client index.

    Parameters
    ----------
    descriptions
        Each client's description of itself, by client index.
    """
    given = {
        client: {key: described.get(key) for key in _NAMES}
        for client, described in sorted(descriptions.items())
    }
    said = {c: tuple(own.values()) for c, own in given.items() if all(own.values())}
    if not said:
        return dict.fromkeys(given, _SILENT)
    # Of several that are as frequent, the first seen.
    most = Counter(said.values()).most_common(1)[0][0]
    return {
        client: _why(own, dict(zip(_NAMES, most, strict=True)))
        for client, own in given.items()
        if said.get(client) != most
    }


_SILENT = (
    "does not say what the ServerApp gave it; install the same flwr-splitmix there as on the mixer"
)


def _why(own: Mapping[str, Any], most: Mapping[str, Any]) -> str:
    if not all(own.values()):
        return _SILENT
    what = " and ".join(name for key, name in _NAMES.items() if own[key] != most[key])
    return (
        f"was given {what} than the others; an honest ServerApp gives all nodes the same, so "
        "either the ServerApp or this node is not honest"
    )
