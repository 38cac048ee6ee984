"""Warnings to a node's operator, once in a run, of what the node's policy leaves open."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.mixers import Share
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.segments.spreading import spreading_tokens

log = logging.getLogger("flwr.splitmix")

PLAIN, SPREADING = "plain", "spreading"
"""Names of warnings that were given, in a client's state."""


class NodeRemarks:
    """Warns a node's operator, once a run, of a risky request, or refuses it.

    Parameters
    ----------
    policy
        The node's policy.
    """

    def __init__(self, policy: NodePolicy) -> None:
        self._unlimited = policy.allow_plain is False and policy.max_epsilon is None
        self._spreads = policy.spreads
        self._once = SeenKeys()
        self._spreading_checked = False

    def check(
        self,
        client: int,
        shares: Sequence[Share | None],
        segment: nn.Module,
        examples: Callable[[], Tensor],
    ) -> None:
        """Check a step's shares before any data are touched.

        Parameters
        ----------
        client
            The client's index.
        shares
            The step's share of each pass.
        segment
            The lower segment.
        examples
            Returns a few of the client's inputs (b, ...), on the segment's device.

        Raises
        ------
        ClientError
            If the node has `allow-spreading` = false, and other tokens have the content of patches
            that are to be masked, or that could not be determined.
        """
        if self._unlimited and self._once.add(PLAIN):
            log.warning(
                "client %d: this node has allow-plain = false and no max-epsilon, so that the run "
                "chooses how little noise there is, down to noise that hides nothing: every upload "
                "then has an epsilon, however large; set max-epsilon",
                client,
            )
        masked = any(share.masked for share in shares if share is not None)
        warned = self._spreads and SPREADING in self._once
        if masked and not self._spreading_checked and not warned:
            self._check_spreading(client, segment, examples())

    def _check_spreading(self, client: int, segment: nn.Module, inputs: Tensor) -> None:
        number = spreading_tokens(segment, inputs)
        if number == 0:
            problem = ""
        elif number is None:
            problem = (
                "it could not be determined whether a patch spreads to other tokens before the cut "
                "(the lower segment cannot be copied, takes no random weights, or shows nothing of "
                "random inputs)"
            )
        else:
            problem = (
                f"layers before the cut let a patch spread: at least {number} tokens depend on "
                "parts of an input on which others depend, too"
            )
        if problem and not self._spreads:
            raise ClientError(
                f"this node has allow-spreading = false, and {problem}, so that masks hide no "
                "patch: cut the model before such layers, as at a ViT's embedding"
            )
        self._spreading_checked = True
        if self._spreads and self._once.add(SPREADING) and problem:
            log.warning(
                "client %d: %s; then masks hide no patch, and a server that chooses the first "
                "weights reads those that are not sent from those that are (allow-spreading = "
                "false refuses such a cut)",
                client,
                problem,
            )

    def state(self) -> list[str]:
        """Return the names of the warnings that were given, sorted."""
        return self._once.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a client's state, which may lack them."""
        self._once.restore(state.get("told", ()))
