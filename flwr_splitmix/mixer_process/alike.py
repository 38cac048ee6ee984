"""Which of a round's nodes may be mixed: those that were given the same and allow the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flwr_splitmix.links.node.given import ORDERS, TRAINING, WEIGHTS

_GIVEN = {WEIGHTS: "another lower segment", ORDERS: "another configuration or ticket"}
_COMPARED = (*_GIVEN, TRAINING)


def unlike(descriptions: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Return the nodes that must not be mixed with the others, each with the reason.

    The largest set of nodes that were given the same, and allow the same, may be mixed; of several,
    the one with the smallest client index.

    Parameters
    ----------
    descriptions
        Each client's description of itself, by client index.
    """
    all_said = {
        client: {key: described.get(key) for key in _COMPARED}
        for client, described in sorted(descriptions.items())
    }
    said = {c: tuple(own.values()) for c, own in all_said.items() if None not in own.values()}
    if not said:
        return dict.fromkeys(all_said, _SILENT)
    # Of several that are as frequent, the first seen.
    most = Counter(said.values()).most_common(1)[0][0]
    return {
        client: _why(own, dict(zip(_COMPARED, most, strict=True)))
        for client, own in all_said.items()
        if said.get(client) != most
    }


_SILENT = (
    "does not say what the ServerApp gave it and what it allows; install the same flwr-splitmix "
    "there as on the mixer"
)


def _why(own: Mapping[str, Any], most: Mapping[str, Any]) -> str:
    if None in own.values():
        return _SILENT
    reasons = []
    if what := " and ".join(name for key, name in _GIVEN.items() if own[key] != most[key]):
        reasons.append(
            f"was given {what} than the others; an honest ServerApp gives all nodes the same, so "
            "either the ServerApp or this node is not honest"
        )
    if own[TRAINING] != most[TRAINING]:
        reasons.append(
            "has another allow-training than the others, or had earlier in this run, so that "
            "gradients change one lower segment and not the other; before a run, set it alike on "
            "all nodes"
        )
    return "; it ".join(reasons)
