"""DPSL, DPMixSL, DPCutMixSL: split learning with Gaussian noise on smashed data and labels."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from flwr_splitmix.mixers.grouping import Regroup
from flwr_splitmix.mixers.masks import Rounding
from flwr_splitmix.mixers.patch_cutmix import Gradient
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies.cutmix_sl import CutMixSL
from flwr_splitmix.strategies.mixup_sl import MixupSL
from flwr_splitmix.strategies.options import BaseOptions
from flwr_splitmix.strategies.psl import PSL


class DPSL(PSL):
    """PSL whose clients clip, and add noise to, all that they send.

    Parameters
    ----------
    upper
        The upper segment.
    noise
        The clipping and the noise.
    **options
        See `SplitStrategy`.

    Source: DP-CutMixSL, table 1 (DP-SL).
    """

    def __init__(
        self, upper: nn.Module, *, noise: GaussianNoise, **options: Unpack[BaseOptions]
    ) -> None:
        super().__init__(upper, noise=_given(self, noise), **options)


class DPSFL(DPSL):
    """DPSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True


class DPMixSL(MixupSL):
    """MixupSL whose clients clip, and add noise to, all that they send.

    Parameters
    ----------
    upper
        The upper segment.
    noise
        The clipping and the noise; on smashed data it is added after the scaling.
    k, alpha, regroup
        See `MixupSL`.
    **options
        See `SplitStrategy`.

    Source: DP-CutMixSL, table 1 (DP-MixSL).
    """

    def __init__(
        self,
        upper: nn.Module,
        *,
        noise: GaussianNoise,
        k: int = 2,
        alpha: float | None = 6.0,
        regroup: Regroup = "step",
        **options: Unpack[BaseOptions],
    ) -> None:
        super().__init__(
            upper, noise=_given(self, noise), k=k, alpha=alpha, regroup=regroup, **options
        )


class DPMixSFL(DPMixSL):
    """DPMixSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True


class DPCutMixSL(CutMixSL):
    """CutMixSL whose clients clip, and add noise to, all that they send.

    Parameters
    ----------
    upper
        The upper segment.
    noise
        The clipping and the noise.
    k, alpha, rounding, min_patches, gradient, regroup, k_times, mask_per_sample
        See `CutMixSL`.
    **options
        See `SplitStrategy`.

    Source: DP-CutMixSL, equation 1 and table 1.
    """

    def __init__(
        self,
        upper: nn.Module,
        *,
        noise: GaussianNoise,
        k: int = 2,
        alpha: float | None = 6.0,
        rounding: Rounding = "multinomial",
        min_patches: int = 0,
        gradient: Gradient = "unicast",
        regroup: Regroup = "step",
        k_times: bool = False,
        mask_per_sample: bool = False,
        **options: Unpack[BaseOptions],
    ) -> None:
        super().__init__(
            upper,
            noise=_given(self, noise),
            k=k,
            alpha=alpha,
            rounding=rounding,
            min_patches=min_patches,
            gradient=gradient,
            regroup=regroup,
            k_times=k_times,
            mask_per_sample=mask_per_sample,
            **options,
        )


class DPCutMixSFL(DPCutMixSL):
    """DPCutMixSL whose lower segments are averaged every round, by FedAvg or by `aggregator`."""

    averages = True


def _given(strategy: object, noise: GaussianNoise | None) -> GaussianNoise:
    if noise is None:
        raise ValueError(
            f"{type(strategy).__name__} needs noise=GaussianNoise(sigma_s=..., sigma_y=...)"
        )
    return noise
