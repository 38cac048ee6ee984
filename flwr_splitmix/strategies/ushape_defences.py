"""Published defences: the U shape with clients that protect what they send.

`flwr_splitmix.hiding` documents what each defence does.
"""

from __future__ import annotations

from flwr_splitmix.hiding import DPSGD, DPForward, NoPeek, SnD
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


class NoPeekSL(UShapeStrategy):
    """Heads trained to send hidden states that depend less on the inputs.

    Parameters
    ----------
    trunk, **options
        See `UShapeStrategy`.

    Source: NoPeek (Vepakomma et al., 2020).
    """

    hiding = NoPeek


class SnDSL(UShapeStrategy):
    """Split-N-Denoise: noise on every token, and a denoiser at the client.

    Parameters
    ----------
    trunk, **options
        See `UShapeStrategy`.

    Source: Split-N-Denoise (Mai et al., 2023).
    """

    hiding = SnD


class DPSGDSL(UShapeStrategy):
    """Heads and tails trained by DP-SGD.

    Parameters
    ----------
    trunk, **options
        See `UShapeStrategy`.

    Source: Abadi et al., Deep Learning with Differential Privacy (2016).
    """

    hiding = DPSGD
