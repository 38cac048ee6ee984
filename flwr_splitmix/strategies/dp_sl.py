"""DPSL, DPMixSL, DPCutMixSL: split learning with Gaussian noise on smashed data and labels.

These require `noise`. Other strategies accept it, except those that mix inputs or have frozen
edges.
"""

from __future__ import annotations

from flwr_splitmix.strategies.cutmix_sl import CutMixSL
from flwr_splitmix.strategies.mixup_sl import MixupSL
from flwr_splitmix.strategies.psl import PSL


class DPSL(PSL):
    """PSL whose clients clip and add noise to everything they send; takes the options of `PSL`.

    Source: DP-CutMixSL, table 1 (DP-SL).
    """

    needs_noise = True


class DPSFL(DPSL):
    """DPSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True


class DPMixSL(MixupSL):
    """MixupSL whose clients clip and add noise to everything they send; takes its options.

    Noise on smashed data is added after scaling by the mixing ratio.

    Source: DP-CutMixSL, table 1 (DP-MixSL).
    """

    needs_noise = True


class DPMixSFL(DPMixSL):
    """DPMixSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True


class DPCutMixSL(CutMixSL):
    """CutMixSL whose clients clip and add noise to everything they send; takes its options.

    Source: DP-CutMixSL, table 1; equation 1 with `GaussianNoise(label_noise="before")`.
    """

    needs_noise = True


class DPCutMixSFL(DPCutMixSL):
    """DPCutMixSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True
