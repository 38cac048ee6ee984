"""The formulas of the DP-CutMixSL papers, as printed, for comparison.

None is used for guarantees. The label's sensitivity is that of L numbers in 0..1, not of a one-hot
label; Theorem 1 does not hold for the paper's own equation 1, in which label noise is scaled with
the label; and Corollary 1 ignores that sampling scales delta too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from flwr_splitmix.privacy.accountant import check_delta
from flwr_splitmix.values import check_choice

Mechanism = Literal["sl", "mix", "cutmix"]


@dataclass(frozen=True, kw_only=True)
class PaperSetting:
    """The parameters of DP-CutMixSL, Table 2 (whose values are the defaults), and the noise.

    Parameters
    ----------
    sigma_s, sigma_y
        Standard deviations; the paper's tables give variances.
    bound
        Delta, the upper bound of every number of the smashed data.
    d_s, d_y
        Numbers in one sample's smashed data and in its label.
    order
        Rényi order, `alpha` in the paper.

    Raises
    ------
    ValueError
        If a number is not positive, or the order not greater than 1.
    """

    sigma_s: float
    sigma_y: float
    bound: float = 0.15
    d_s: int = 10
    d_y: int = 2
    order: float = 2.0

    def __post_init__(self) -> None:
        for name in ("sigma_s", "sigma_y", "bound", "d_s", "d_y"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if not self.order > 1:
            raise ValueError(f"order is {self.order}; a Rényi order must be greater than 1")

    @property
    def smashed_term(self) -> float:
        """`order Delta^2 D_s / (2 sigma_s^2)`: the paper's epsilon_{1,s}; not a guarantee."""
        shift = self.bound / self.sigma_s
        return self.order * self.d_s * (shift * shift) / 2

    @property
    def label_term(self) -> float:
        """`order D_y / (2 sigma_y^2)`: the paper's epsilon_{1,y}; not a guarantee."""
        shift = 1 / self.sigma_y
        return self.order * self.d_y * (shift * shift) / 2

    def offset(self, delta: float) -> float:
        """`log(1/delta) / (order - 1)`: the paper's epsilon_o, used for its conversion."""
        check_delta(delta)
        return -math.log(delta) / (self.order - 1)


def paper_theorem1(method: Mechanism, setting: PaperSetting, ratio: float) -> float:
    """Return the Rényi divergence of one epoch according to the paper; not a guarantee.

    Parameters
    ----------
    method
        "sl": `e_s + e_y`; "mix": `m^2 (e_s + e_y)`; "cutmix": `m (e_s + m e_y)`.
    ratio
        m, the largest mixing ratio of the group.

    Returns
    -------
    Nats at order `setting.order`.

    Raises
    ------
    ValueError
        If the method is unknown or the ratio not in (0, 1].

    Source: DP-CutMixSL, Theorem 1.
    """
    check_choice("method", method, get_args(Mechanism))
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio is {ratio}; the largest mixing ratio lies above 0 and up to 1")
    e_s, e_y = setting.smashed_term, setting.label_term
    if method == "sl":
        return e_s + e_y
    return ratio**2 * (e_s + e_y) if method == "mix" else ratio * (e_s + ratio * e_y)


def paper_corollary1(rdp: float, setting: PaperSetting, delta: float, k: int, n: int) -> float:
    """Return epsilon for groups of k of n clients according to the paper; not a guarantee.

    `log(1 + (k/n)(exp(rdp + log(1/delta)/(order - 1)) - 1))`. It treats drawing a group as
    sampling, although every client takes part and the server sees every group, and states the
    result at `delta`, while sampling gives `(k/n) delta`.

    Raises
    ------
    ValueError
        If delta is not strictly between 0 and 1, or k not in 1..n.

    Source: DP-CutMixSL, Corollary 1.
    """
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}; a group has 1 to n = {n} clients")
    exponent = rdp + setting.offset(delta)
    if exponent > 30:  # exp overflows above 709; here the 1s are below the last digit
        return exponent + math.log(k / n)
    return math.log1p(k / n * math.expm1(exponent))


def paper_optimal_group_size(
    method: Literal["mix", "cutmix"], setting: PaperSetting, delta: float
) -> float:
    """Return the k that minimises epsilon according to the paper; not a guarantee.

    "mix": `k2* = sqrt((e_s + e_y) / e_o)`; "cutmix": `k3* = sqrt(e_y / e_o)`.

    Raises
    ------
    ValueError
        If the method is neither, or delta is not strictly between 0 and 1.

    Source: DP-CutMixSL, Corollary 1.
    """
    check_choice("method", method, ("mix", "cutmix"))
    gain = setting.label_term + (setting.smashed_term if method == "mix" else 0.0)
    return math.sqrt(gain / setting.offset(delta))
