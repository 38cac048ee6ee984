"""Which of a round's nodes may be mixed: those that were given the same and allow the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from flwr_splitmix.description import Description, NodeDescription

_SILENT = (
    "does not say what the ServerApp gave it and what it allows; install the same flwr-splitmix "
    "there as on the mixer"
)


def unlike(descriptions: Mapping[int, Description]) -> dict[int, str]:
    """Return the nodes that must not be mixed with the others, each with the reason.

    The largest set of nodes that were given the same, and allow the same, may be mixed; of several,
    the one with the smallest client index.

    Parameters
    ----------
    descriptions
        Each client's description of itself, by client index.
    """
    nodes = {client: descriptions[client].node for client in sorted(descriptions)}
    said = [own for own in nodes.values() if not _silent(own)]
    if not said:
        return dict.fromkeys(nodes, _SILENT)
    # Of several that are as frequent, the first seen.
    most = Counter(said).most_common(1)[0][0]
    return {client: _why(own, most) for client, own in nodes.items() if own != most}


def _silent(own: NodeDescription) -> bool:
    return None in (own.given_weights, own.given_orders, own.allow_training)


def _why(own: NodeDescription, most: NodeDescription) -> str:
    if _silent(own):
        return _SILENT
    reasons = []
    differs = {
        "another lower segment": own.given_weights != most.given_weights,
        "another configuration or ticket": own.given_orders != most.given_orders,
    }
    if what := " and ".join(name for name, does in differs.items() if does):
        reasons.append(
            f"was given {what} than the others; an honest ServerApp gives all nodes the same, so "
            "either the ServerApp or this node is not honest"
        )
    if own.allow_training != most.allow_training:
        reasons.append(
            "has another allow-training than the others, or had earlier in this run, so that "
            "gradients change one lower segment and not the other; before a run, set it alike on "
            "all nodes"
        )
    return "; it ".join(reasons)
