"""What a node's operator is told once in a run, as the node's policy leaves it open."""

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
"""Names of what was told, in a client's state."""


class NodeRemarks:
    """Warns a node's operator of what a run asks for, once a run, or refuses it.

    Parameters
    ----------
    policy
        The node's policy.
    """

    def __init__(self, policy: NodePolicy) -> None:
        self._unlimited = policy.allow_plain is False and policy.max_epsilon is None
        self._spreads = policy.spreads
        self._once = SeenKeys()
        self._looked = False

    def admit(
        self,
        client: int,
        shares: Sequence[Share | None],
        segment: nn.Module,
        examples: Callable[[], Tensor],
    ) -> None:
        """Look at a step's shares before any data are touched.

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
            If patches are to be masked whose content other tokens have, too, or it cannot be told,
            and the node has `allow-spreading` = false.
        """
        if self._unlimited and self._once.add(PLAIN):
            log.warning(
                "client %d: this node has allow-plain = false and no max-epsilon, so that the run "
                "chooses how little noise there is, down to noise that hides nothing: every upload "
                "then has an epsilon, however large; set max-epsilon",
                client,
            )
        masked = any(share.masked for share in shares if share is not None)
        if masked and not self._looked and not (self._spreads and SPREADING in self._once):
            self._look(client, segment, examples())

    def _look(self, client: int, segment: nn.Module, inputs: Tensor) -> None:
        number = spreading_tokens(segment, inputs)
        if number == 0:
            remark = ""
        elif number is None:
            remark = (
                "it cannot be told whether a patch spreads to other tokens before the cut (the "
                "lower segment cannot be copied, takes no random weights, or shows nothing of "
                "random inputs)"
            )
        else:
            remark = (
                f"layers before the cut let a patch spread: at least {number} tokens tell of "
                "parts of an input of which others tell, too"
            )
        if remark and not self._spreads:
            raise ClientError(
                f"this node has allow-spreading = false, and {remark}, so that masks hide no "
                "patch: cut the model before such layers, as at a ViT's embedding"
            )
        self._looked = True
        if self._spreads and self._once.add(SPREADING) and remark:
            log.warning(
                "client %d: %s; then masks hide no patch, and a server that chooses the first "
                "weights reads those that are not sent from those that are (allow-spreading = "
                "false refuses such a cut)",
                client,
                remark,
            )

    def state(self) -> list[str]:
        """Return what was told, sorted."""
        return self._once.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a client's state, which may lack it."""
        self._once.restore(state.get("told", ()))
