"""A warning about labels that a client's noise replaces, as the server has fewer classes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor

from flwr_splitmix.mixers import NoisyShare, Share
from flwr_splitmix.seen_keys import SeenKeys

log = logging.getLogger("flwr.splitmix")


def warn_of_unknown(
    client: int, shares: Sequence[Share | None], labels: Tensor, once: SeenKeys
) -> None:
    """Warn, once for a number of classes, of labels that leave as noise alone.

    Parameters
    ----------
    client
        Index of the client.
    shares
        A step's share of each pass.
    labels
        Those of its batch, int64 (b,); multi-label ones (b, L) have no class.
    once
        Labels of which the client has warned before.
    """
    if labels.dim() != 1:
        return
    for classes in {share.classes for share in shares if isinstance(share, NoisyShare)}:
        unknown = (labels < 0) | (labels >= classes)
        if unknown.any() and once.add(("unknown labels", classes)):
            log.warning(
                "client %d: labels outside 0..%d are sent as noise alone: start classes at 0, or "
                "pass a larger num_classes",
                client,
                classes - 1,
            )
