"""The field's defences of texts: the U shape with clients that protect what they send.

What each does is said by its hiding, `flwr_splitmix.hiding`.
"""

from __future__ import annotations

from flwr_splitmix.hiding import DPForward
from flwr_splitmix.strategies.ushape import UShapeStrategy


class DPForwardSL(UShapeStrategy):
    """Clipped hidden states with Gaussian noise.

    Parameters
    ----------
    trunk, **options
        See `UShapeStrategy`.

    Source: DP-Forward (Du et al., 2023).
    """

    hiding = DPForward
