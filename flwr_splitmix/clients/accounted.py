"""Whether the epsilon that a hiding keeps holds for its client."""

from __future__ import annotations

from torch import nn

from flwr_splitmix.clients.client import Client, ClientError
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.segments.across_batch import needs_whole_batch


def check_accounted(
    client: type[Client], base: type[Client], hiding: Hiding, segments: nn.Module
) -> None:
    """Refuse a client whose hiding would report an epsilon that does not hold.

    Parameters
    ----------
    client, base
        The client's class, and the one that leaves everything to the hiding.
    segments
        Head and tail by name.

    Raises
    ------
    ClientError
        If the client, or a subclass of the hiding without a `charge` of its own, overrides a method
        on which the epsilon rests, or a segment does not keep a batch's texts apart.
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
    for part in hiding.apart:
        if layer := needs_whole_batch(segments.get_submodule(part)):
            raise ClientError(
                f"the {part} has {layer}, by which a text changes what others in its batch "
                f"send or teach, so there is no epsilon: take a {part} without {layer}"
            )
