"""USplitSL and USplitFL: the plain U shape, which hides nothing that crosses the cuts."""

from __future__ import annotations

from flwr_splitmix.strategies.ushape import UShapeStrategy


class USplitSL(UShapeStrategy):
    """U-shaped split learning: each client keeps its own head and tail.

    Parameters
    ----------
    trunk, **options
        See `UShapeStrategy`.

    Source: split learning without label sharing (Vepakomma et al., 2018).
    """


class USplitFL(USplitSL):
    """USplitSL whose heads and tails are averaged every round.

    Parameters
    ----------
    trunk
        The trunk.
    aggregator
        Flower strategy for heads and tails; FedAvg by default.
    **options
        See `UShapeStrategy`.
    """

    averages = True
