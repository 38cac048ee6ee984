"""The nodes of a round that may be mixed: those that were given the same and allow the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from flwr_splitmix.description import Description, NodeDescription

_SILENT = (
    "does not report what the ServerApp gave it and what it allows; install the same flwr-splitmix "
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
    speaking = [node for node in nodes.values() if not _silent(node)]
    if not speaking:
        return dict.fromkeys(nodes, _SILENT)
    # Of several equally frequent, the first seen.
    most = Counter(speaking).most_common(1)[0][0]
    return {client: _why(node, most) for client, node in nodes.items() if node != most}


def _silent(node: NodeDescription) -> bool:
    return None in (node.given_weights, node.given_orders, node.allow_training)


def _why(node: NodeDescription, most: NodeDescription) -> str:
    if _silent(node):
        return _SILENT
    reasons = []
    differs = {
        "another lower segment": node.given_weights != most.given_weights,
        "another configuration or ticket": node.given_orders != most.given_orders,
    }
    if differences := " and ".join(name for name, does in differs.items() if does):
        reasons.append(
            f"was given {differences} than the others; an honest ServerApp gives all nodes the "
            "same, so either the ServerApp or this node is not honest"
        )
    if node.allow_training != most.allow_training:
        reasons.append(
            "has another allow-training than the others, or had earlier in this run, so that "
            "gradients change one lower segment and not the other; before a run, set it alike on "
            "all nodes"
        )
    return "; it ".join(reasons)
