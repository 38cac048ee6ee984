"""The run configuration of the vision app: all keys, checked before a run starts."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, field_validator, model_validator
from torch import nn

from flwr_splitmix.apps.configuration.links import mixer_link
from flwr_splitmix.apps.configuration.run_config import (
    SIMULATED_STREAM,
    AppConfig,
    Count,
    CountOrAuto,
    NotNegative,
    Positive,
)
from flwr_splitmix.apps.vision.third_party import check_third_party
from flwr_splitmix.apps.vision.ushape_keys import IMAGE_USHAPE, check_ushape
from flwr_splitmix.clients import PrivacyBudget
from flwr_splitmix.clients.ushape.ends import Learns
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.hiding.dp_forward import Sensitivity
from flwr_splitmix.hiding.making import hiding_options, make_hiding, sources_of
from flwr_splitmix.limits import LARGEST, LARGEST_SIGMA
from flwr_splitmix.links import Link
from flwr_splitmix.methods import BY_NAME, own_options
from flwr_splitmix.observers import KeptMixtures, Observer
from flwr_splitmix.observers.trackers import make_trackers
from flwr_splitmix.privacy import GaussianNoise, Relation
from flwr_splitmix.privacy.noise import Clip, LabelNoise, SmashedNoise
from flwr_splitmix.runs import Run
from flwr_splitmix.schedule import WarmupCosine
from flwr_splitmix.segments.vision.shuffled_edge import Embedding
from flwr_splitmix.server.aggregation import AggregatorName
from flwr_splitmix.server.segments.upper import ServerUpdate
from flwr_splitmix.server.steps.pace import Grouping, GroupOrder, Pace, Straggler
from flwr_splitmix.server.steps.part_count import PARTS_ALLOWED, PartsAsked, is_parts
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy
from flwr_splitmix.strategies.option_trial import needs_labels, trial_strategy
from flwr_splitmix.strategies.vision_cut import edge_of
from flwr_splitmix.suggestions import allowed

MEANS_NONE = {"alpha": math.inf, "ratio": 0.0}
"""Values that stand for None, which a run configuration cannot contain."""

GAPS = {"clip": "clip 'none'", "sigma_s": "sigma-s 0.0", "sigma_y": "sigma-y 0.0"}
"""Settings of the noise for which there is no epsilon, as keys and values."""

Sigma = Annotated[float, Field(ge=0, le=LARGEST_SIGMA)]


class VisionConfig(AppConfig):
    """Configuration keys of `apps/vision`, as described in docs/configuration.md."""

    strategy: str
    aggregator: AggregatorName
    server_update: ServerUpdate
    k: Annotated[int, Field(ge=2)]
    alpha: Annotated[float, Field(gt=0)]
    rounding: Literal["multinomial", "largest-remainder"]
    min_patches: CountOrAuto
    gradient: Literal["unicast", "broadcast"]
    regroup: Literal["step", "epoch"]
    k_times: StrictBool
    mask_per_sample: StrictBool
    fixed_positions: StrictBool
    beta: Positive
    ratio: Annotated[float, Field(ge=0, le=1)]
    across: Literal["batch", "clients"]
    kappa: Annotated[float, Field(gt=0, le=1)]
    spectrum: Literal["embedding", "pixels"]
    sigma_s: Sigma
    sigma_y: Sigma
    clip: Clip
    clip_norm: Annotated[float, Field(gt=0, le=LARGEST)]
    smashed_noise: SmashedNoise
    label_noise: LabelNoise
    clamp_labels: StrictBool
    delta: Annotated[float, Field(gt=0, lt=1)]
    max_epsilon: NotNegative
    allow_averaging: StrictBool
    relation: Relation
    trusted_mixer: StrictBool
    leftover: Literal["send", "skip"] = "send"
    head_layers: CountOrAuto = 1
    tail_layers: CountOrAuto = 1
    learns: Learns = "all"
    lam: Annotated[float, Field(ge=0.001, le=1)] = 0.5
    epsilon: Annotated[float, Field(ge=1e-4, le=LARGEST)] = 8.0
    releases: Count = 1
    sensitivity: Sensitivity = "replace"
    dcor_weight: Annotated[float, Field(ge=0, le=LARGEST)] = 1.0
    noise_multiplier: Annotated[float, Field(gt=0, le=LARGEST)] = 1.0
    straggler: Straggler
    straggler_factor: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    group_order: GroupOrder
    grouping: Grouping
    micro_batches: PartsAsked
    model: str
    pretrained: StrictBool
    depth: Annotated[int, Field(ge=0, le=1000)]
    image_size: Count
    patch_size: Count
    cut_at: str
    cell: Count
    embedding: Embedding = "patch"
    dataset: str
    skip_corrupt: StrictBool
    partition: Literal["iid", "dirichlet"]
    partition_alpha: Annotated[float, Field(gt=0, le=1e9)]
    samples_per_client: CountOrAuto
    evaluation: Literal["auto", "central", "federated", "benchmark", "none"]
    keep_mixtures: CountOrAuto
    link_via: str
    link_via_token: str

    @field_validator("strategy")
    @classmethod
    def _is_there(cls, name: str) -> str:
        strategies = [*STRATEGIES, *IMAGE_USHAPE]
        if name in BY_NAME and name not in strategies:
            raise ValueError("it is for language models, in apps/language")
        if name not in strategies:
            raise ValueError(allowed(name, strategies, "docs/configuration.md"))
        return name

    @field_validator("micro_batches", mode="before")
    @classmethod
    def _are_parts(cls, parts: object) -> object:
        if not is_parts(parts):
            raise ValueError(PARTS_ALLOWED)
        return parts

    @model_validator(mode="after")
    def _central_evaluation_has_averaged_segments(self) -> VisionConfig:
        if self.evaluation == "central" and not self.averages:
            raise ValueError(
                f"evaluation 'central' needs averaged lower segments, and {self.strategy} does "
                "not average them; use 'federated', 'benchmark', 'none' or 'auto' with it"
            )
        return self

    @model_validator(mode="after")
    def _pretrained_weights_keep_their_depth(self) -> VisionConfig:
        if self.pretrained and self.depth:
            raise ValueError(
                f"depth is {self.depth}, but pretrained weights are those of the model's own "
                "depth; use depth 0 with pretrained"
            )
        return self

    @model_validator(mode="after")
    def _keys_fit_the_shape(self) -> VisionConfig:
        if self.ushape:
            check_ushape(self)
        elif self.learns != "all":  # ignored, it would be a false promise
            raise ValueError(
                f"learns is {self.learns!r}, which is for strategies of the U shape; use 'all' "
                f"with {self.strategy}"
            )
        return self

    @model_validator(mode="after")
    def _noise_is_on_where_a_strategy_needs_it(self) -> VisionConfig:
        if not self.ushape and STRATEGIES[self.strategy].needs_noise and self.noise is None:
            raise ValueError(
                f"sigma-s and sigma-y are both 0.0, but {self.strategy} needs noise; at least one "
                "must be above 0"
            )
        return self

    @model_validator(mode="after")
    def _third_party_can_mix(self) -> VisionConfig:
        # With a third party fewer options are right than the strategy itself takes, so that these
        # remedies come before the strategy's own.
        if not self.ushape:
            check_third_party(self, self.trial().mixer)
        return self

    @model_validator(mode="after")
    def _strategy_takes_its_options(self) -> VisionConfig:
        if not self.ushape:
            trial = self.trial(
                server_update=self.server_update, pace=self.pace, micro_batches=self.micro_batches
            )
            trial.prepare(None)
        return self

    @model_validator(mode="after")
    def _frozen_edges_have_their_own_cut(self) -> VisionConfig:
        if self.cut_at and self._edge:
            raise ValueError(
                f"cut-at is {self.cut_at!r}, but {self.strategy} has a cut of its own; use '' "
                "with it"
            )
        return self

    @model_validator(mode="after")
    def _only_frozen_edges_have_an_embedding(self) -> VisionConfig:
        if self.embedding != "patch" and not self._edge:
            raise ValueError(
                f"embedding is {self.embedding!r}, which only frozen edges have; use 'patch' with "
                f"{self.strategy}"
            )
        return self

    @model_validator(mode="after")
    def _keeps_its_budget(self) -> VisionConfig:
        if not self.max_epsilon:
            return self
        if gaps := self._gaussian.gaps:
            raise ValueError(
                f"max-epsilon is {self.max_epsilon}, but there is no epsilon with "
                f"{' and '.join(GAPS[gap] for gap in gaps)}; it needs clip 'patch', 'range' or "
                "'sample', and sigma-s and sigma-y above 0"
            )
        if self.averages and not self.allow_averaging:
            raise ValueError(
                f"max-epsilon is {self.max_epsilon}, but {self.strategy} averages lower segments, "
                "which no epsilon covers; use a strategy that does not average, or "
                "allow-averaging true (a SuperNode's own configuration must say so too)"
            )
        if self.evaluation == "federated":
            central = "'central', " if self.averages else ""
            raise ValueError(
                f"max-epsilon is {self.max_epsilon}, but evaluation 'federated' sends each "
                "client's own test images without noise, which no epsilon covers; use "
                f"{central}'benchmark', 'none' or 'auto' with it"
            )
        return self

    @property
    def not_in_simulation(self) -> str:
        """Why this cannot run over Ray's link, with the remedy; "" if it can."""
        if self.ushape or not self.pace.notices_arrival:  # its own check refuses these keys
            return super().not_in_simulation
        return (
            f"straggler is {self.straggler!r} and group-order {self.group_order!r}, but in a "
            "simulation clients take turns on the same processors and none is late; use "
            f"straggler 'wait' and group-order 'random' there, or {SIMULATED_STREAM}"
        )

    @property
    def ushape(self) -> bool:
        """Whether the strategy has the U shape."""
        return self.strategy in IMAGE_USHAPE

    @property
    def _edge(self) -> dict[str, Any] | None:
        return None if self.ushape else edge_of(self.trial())

    @property
    def averages(self) -> bool:
        """Whether the strategy averages the clients' segments."""
        kind = IMAGE_USHAPE.get(self.strategy) or STRATEGIES[self.strategy]
        return kind.averages

    def trial(self, upper: nn.Module | None = None, **further: Any) -> SplitStrategy:
        """Make a strategy that will not train, to check its options and its needs.

        Parameters
        ----------
        upper
            Its upper segment; None makes it without a model.
        **further
            Options besides its own and those on noise and privacy.
        """
        options = self.own_options() | self.privacy_options() | further
        return trial_strategy(self.strategy, options, upper)

    def hiding(self) -> Hiding:
        """Make what a client of the U shape hides its images with."""
        return make_hiding(IMAGE_USHAPE[self.strategy].hiding, sources_of(self.own_options()))

    @property
    def messages_per_batch(self) -> int:
        """Number of messages that a client of the U shape sends for a batch."""
        return IMAGE_USHAPE[self.strategy].hiding.messages_per_batch(self.own_options())

    def own_options(self) -> dict[str, Any]:
        """Return the strategy's own options, by the names of arguments.

        They are its constructor's that are also keys; in the U shape its hiding's.
        """
        if self.ushape:
            kind = IMAGE_USHAPE[self.strategy].hiding
            return {name: getattr(self, name) for name in sorted(hiding_options(kind))}
        named = own_options(STRATEGIES[self.strategy])
        values = {name: getattr(self, name) for name in named if name in VisionConfig.model_fields}
        return {k: None if v == MEANS_NONE.get(k) else v for k, v in values.items()}

    @property
    def pace(self) -> Pace:
        """Treatment of clients of different speeds."""
        return Pace(self.straggler, self.straggler_factor, self.group_order, self.grouping)

    @property
    def noise(self) -> GaussianNoise | None:
        """Clipping and noise that every client applies to its uploads; None without noise."""
        return self._gaussian if self.sigma_s or self.sigma_y else None

    @property
    def _gaussian(self) -> GaussianNoise:
        return GaussianNoise(**{f.name: getattr(self, f.name) for f in fields(GaussianNoise)})

    def privacy_options(self) -> dict[str, Any]:
        """Return the options on noise and privacy, which every strategy has."""
        return {
            "noise": self.noise,
            "delta": self.delta,
            "trusted_mixer": self.trusted_mixer,
            "relation": self.relation,
        }

    def make_link(self, run: Run | None) -> Link:
        """Make the configured link; see `AppConfig.make_link` and `mixer_link`."""
        return mixer_link(self, run) if self.link_via else super().make_link(run)

    def make_trackers(self) -> list[Observer]:
        """Make the trackers and, if configured, the observer of mixtures, which they show."""
        if not self.keep_mixtures:
            return super().make_trackers()
        mixtures = KeptMixtures(self.keep_mixtures)
        return [mixtures, *make_trackers(self.tracker, mixtures)]

    @property
    def budget(self) -> PrivacyBudget | None:
        """Privacy budget that every client accounts for and enforces; None without noise."""
        if self.noise is None:
            return None
        limit = self.max_epsilon or None
        return PrivacyBudget(
            delta=self.delta,
            max_epsilon=limit,
            relation=self.relation,
            allow_averaging=self.allow_averaging or None,
        )

    @property
    def needs_labels(self) -> bool:
        """Whether the server needs the clients' labels."""
        return needs_labels(self.strategy)

    @property
    def evaluation_kind(self) -> Literal["central", "federated", "benchmark", "none"]:
        """Kind of evaluation.

        "auto" is "central" if lower segments are averaged, else "benchmark", or "none" with a
        mixer elsewhere, where a client's test data would not be mixed with others'.
        """
        if self.evaluation != "auto":
            return self.evaluation
        if self.averages:
            return "central"
        return "none" if self.link_via else "benchmark"

    @property
    def evaluation_over_link(self) -> Literal["federated", "benchmark", "none"]:
        """Kind of evaluation at the clients."""
        kind = self.evaluation_kind
        return "none" if kind == "central" else kind

    def schedule(self) -> WarmupCosine:
        """Return both sides' schedule: linear warm-up from 1e-6, then a cosine to 1e-5.

        Both rates are limited to the peak rate, and else do not depend on it. The papers state
        neither; they are DeiT's.
        """
        return WarmupCosine(
            self.warmup_epochs / self.epochs_per_round,
            min(1.0, 1e-6 / self.lr),
            min(1.0, 1e-5 / self.lr),
        )
