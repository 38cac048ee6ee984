"""Whether the epsilon that a hiding keeps holds for its client."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.client import Client, ClientError
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments.across_batch import mixing_layers


def check_accounted(client: type[Client], base: type[Client], hiding: Hiding) -> None:
    """Refuse a client whose hiding would report an epsilon that does not hold.

    Parameters
    ----------
    client, base
        The client's class, and the one that leaves everything to the hiding.

    Raises
    ------
    ClientError
        If the client, or a subclass of the hiding without a `charge` of its own, overrides a method
        on which the epsilon rests.
    """
    if not hiding.accounts:
        return
    name = type(hiding).__name__
    changed = hiding.uncharged()
    by = f"{name}.{changed}"
    for method in hiding.rests_on:
        if getattr(client, method, None) is not getattr(base, method, None):
            changed, by = method, f"{client.__name__}.{method}"
    if changed:
        raise ClientError(
            f"{by} is your own, and {name} does not account for what it does, so there is no "
            f"epsilon: override {changed} in a subclass of the hiding, and there also `charge`, "
            "which says what it costs; or take a hiding without an epsilon"
        )


def check_apart(
    hiding: Hiding, head: nn.Module, tail: nn.Module, batch: MaskedBatch, *, again: bool
) -> bool:
    """Refuse a head or tail on which an epsilon rests and that mixes a batch's examples.

    No epsilon covers the lengths of texts, so masks stay as they are in the trial.

    Parameters
    ----------
    batch
        As many of the client's examples as are in a training batch, on its device.
    again
        Whether trials with these were complete before; these have only the current weights.

    Returns
    -------
    Whether the trials were complete; else other weights may show more.

    Raises
    ------
    ClientError
        If the names of its layers, or a trial on these examples, show that it does.
    """
    known = True
    for part in hiding.apart:
        segment = head if part == "head" else tail
        inputs = batch.inputs if part == "head" else _states_like(head, batch)
        layer = mixing_layers(segment, inputs, batch.mask, renewed=not again)
        known &= layer is not None
        if layer:
            raise ClientError(
                f"the {part} has {layer}, by which an example changes what others send or teach, "
                f"so there is no epsilon: take a {part} without {layer}"
            )
    return known


def _states_like(head: nn.Module, batch: MaskedBatch) -> Tensor:
    """Draw hidden states (b, T, d); the head's own may be all alike, by weights of the server."""
    with torch.no_grad(), seeded_draws(batch.inputs.device, 0):
        return torch.randn_like(head(batch.inputs, batch.mask))
