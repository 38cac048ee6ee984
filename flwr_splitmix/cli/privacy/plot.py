"""The curves of `splitmix privacy compare`, and their plot: DP-CutMixSL, figures 5d and 11b."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flwr_splitmix.cli.picture import two_panels
from flwr_splitmix.cli.privacy.plan import MAX_PATCHES, MAX_RATIOS, check_at_most
from flwr_splitmix.privacy import GaussianNoise, RandomMasks, Release, ReleasePlan
from flwr_splitmix.privacy.costs import check_bound, check_drawn
from flwr_splitmix.privacy.events import Family
from flwr_splitmix.privacy.paper import Mechanism, PaperSetting, paper_corollary1, paper_theorem1
from flwr_splitmix.privacy.run_plan import left_over, ratios_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_CURVE = 1000  # clients, and so group sizes: thousands of plans take minutes
_VARIANCES = [10 ** (exponent / 10) for exponent in range(-20, 1)]
_NAMES: dict[str, tuple[Family, Mechanism]] = {
    "SL": ("full", "sl"),
    "Mix": ("mixup", "mix"),
    "CutMix": ("cutmix", "cutmix"),
}


@dataclass(frozen=True, kw_only=True)
class ComparisonSetting:
    """The setting of a comparison; ratios are 1/k for every member of a full group.

    With `left_over`, ours are those of all clients in random groups: if k does not divide their
    number, some are in a smaller group and send more. The paper's groups are full.
    """

    sigma_s: float
    sigma_y: float
    bound: float
    dimension: int
    classes: int
    clients: int
    order: float
    passes: int
    delta: float
    trusted_mixer: bool
    left_over: bool = False

    def __post_init__(self) -> None:
        for name in ("sigma_s", "sigma_y"):
            if not (value := getattr(self, name)) > 0:
                raise ValueError(f"{name} is {value}; an epsilon needs noise above 0")
            check_drawn(f"--{name.replace('_', '-')}", value)
        if self.bound > 0:  # otherwise the noise's own check reports that there is none
            check_bound("--range", self.bound)
        if self.clients < 1:
            raise ValueError(f"clients is {self.clients}; it must be at least 1")
        check_at_most("clients", self.clients, _MAX_CURVE)
        if self.left_over:
            check_at_most("dimension", self.dimension, MAX_PATCHES)
            if self.trusted_mixer:
                check_at_most("clients times dimension", self.clients * self.dimension, MAX_RATIOS)

    def ours(self, name: str, k: int) -> float:
        """Return the accountant's epsilon of one method."""
        noise = GaussianNoise(
            sigma_s=self.sigma_s,
            sigma_y=self.sigma_y,
            clip="range",
            clip_norm=self.bound,
            clamp_labels=not self.trusted_mixer,
        )
        release = Release(
            noise=noise,
            patches=self.dimension,
            width=1,
            family=_NAMES[name][0],
            seen="sum" if self.trusted_mixer else "alone",
            ratios=(1.0,),
        )
        kept_ratios: float | RandomMasks = 1 / k
        if release.family != "full" and self.left_over and left_over(self.clients, k):
            kept_ratios = ratios_of(
                release.family, self.dimension, k, None, self.delta, clients=self.clients
            )
        plan = ReleasePlan(
            release=release, passes=self.passes, delta=self.delta, kept=kept_ratios, k=k
        )
        return plan.epsilon()

    def papers(self, name: str, k: int) -> float:
        """Return the paper's epsilon, not a guarantee: Theorem 1, then Corollary 1."""
        setting = PaperSetting(
            sigma_s=self.sigma_s,
            sigma_y=self.sigma_y,
            bound=self.bound,
            d_s=self.dimension,
            d_y=self.classes,
            order=self.order,
        )
        rdp = self.passes * paper_theorem1(_NAMES[name][1], setting, 1 / k)
        return paper_corollary1(rdp, setting, self.delta, k, self.clients)

    def over_k(self) -> dict[str, list[float]]:
        """Return epsilon for k = 1 to n by name: three curves of ours, three of the paper."""
        ks = range(1, self.clients + 1)
        mine = {name: [self.ours(name, k) for k in ks] for name in _NAMES}
        theirs = {f"{name} (paper)": [self.papers(name, k) for k in ks] for name in _NAMES}
        return {**mine, **theirs}

    def over_variance(self) -> dict[str, list[float]]:
        """Return epsilon for k = 2 and equal variances from 0.01 to 1, named as in `over_k`."""
        equal = [replace(self, sigma_s=v**0.5, sigma_y=v**0.5) for v in _VARIANCES]
        k = min(2, self.clients)
        mine = {name: [each.ours(name, k) for each in equal] for name in _NAMES}
        theirs = {f"{name} (paper)": [each.papers(name, k) for each in equal] for name in _NAMES}
        return {**mine, **theirs}


def draw(setting: ComparisonSetting) -> Figure:
    """Draw epsilon over k (left) and over the variance (right); the paper's is dashed."""
    figure = two_panels(lambda over_k, over_variance: _draw_panels(setting, over_k, over_variance))
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6,
                  frameon=False, fontsize=8)  # fmt: skip
    return figure


def _draw_panels(setting: ComparisonSetting, over_k: Axes, over_variance: Axes) -> None:
    panels = (
        (over_k, range(1, setting.clients + 1), setting.over_k()),
        (over_variance, _VARIANCES, setting.over_variance()),
    )
    for axes, x, curves in panels:
        for index, (name, values) in enumerate(curves.items()):
            colour, dashes = f"C{index % len(_NAMES)}", "--" if index >= len(_NAMES) else "-"
            axes.plot(list(x), values, color=colour, linestyle=dashes, label=name)
        axes.set(ylabel=f"epsilon at delta {setting.delta:g}", yscale="log")
    over_k.set(title="over the group size", xlabel="k")
    over_variance.set(title="over the noise, k = 2", xlabel="variance of the noise", xscale="log")
