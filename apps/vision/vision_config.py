"""Every hyper-parameter of the app, checked before anything starts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    field_validator,
    model_validator,
)
from torch import nn

from flwr_splitmix import WarmupCosine, adamw, split_vision_model
from flwr_splitmix.data import ImageDataset, ImageSets, client_split, load_images
from flwr_splitmix.schedule import OptimizerFactory
from flwr_splitmix.segments import SplitModel, split_shuffled_edge
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy

Count = Annotated[int, Field(ge=1)]
CountOrAuto = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

MEANS_NONE = {"alpha": math.inf, "ratio": 0.0}
"""A run configuration has no None; these values stand for it."""


class ConfigError(ValueError):
    """The run configuration is wrong; the sentence names key, value and what is allowed."""


class VisionConfig(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=lambda name: name.replace("_", "-"),
        protected_namespaces=(),
    )

    strategy: str
    aggregator: Literal[
        "FedAvg", "FedAvgM", "FedAdam", "FedAdagrad", "FedYogi", "FedMedian", "FedTrimmedAvg"
    ]
    num_server_rounds: Count
    epochs_per_round: Count
    steps_per_round: CountOrAuto
    batch_size: Count
    server_update: Literal["sequential", "sum", "mean"]
    lr: Positive
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    warmup_epochs: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    seed: Annotated[int, Field(ge=0)]
    k: Annotated[int, Field(ge=2)]
    alpha: Annotated[float, Field(gt=0)]
    rounding: Literal["multinomial", "largest-remainder"]
    min_patches: CountOrAuto
    gradient: Literal["unicast", "broadcast"]
    regroup: Literal["step", "epoch"]
    k_times: StrictBool
    mask_per_sample: StrictBool
    beta: Positive
    ratio: Annotated[float, Field(ge=0, le=1)]
    across: Literal["batch", "clients"]
    kappa: Annotated[float, Field(gt=0, le=1)]
    model: str
    pretrained: StrictBool
    depth: CountOrAuto
    image_size: Count
    patch_size: Count
    cut_at: str
    cell: Count
    dataset: str
    partition: Literal["iid", "dirichlet"]
    partition_alpha: Annotated[float, Field(gt=0, le=1e9)]
    samples_per_client: CountOrAuto
    fraction_train: Annotated[float, Field(gt=0, le=1)]
    min_nodes: CountOrAuto
    evaluation: Literal["auto", "central", "federated", "benchmark", "none"]
    evaluate_every: Count
    device: str
    precision: Literal["auto", "float32", "bfloat16"]
    server_threads: CountOrAuto
    client_device: str
    num_hosts: CountOrAuto
    host_gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    host_threads: Count
    attach_timeout: Positive
    step_timeout: Positive
    run_dir: str
    checkpoint_every: Count
    resume: str

    @field_validator("strategy")
    @classmethod
    def _is_there(cls, name: str) -> str:
        if name not in OFFERED:
            raise ValueError(f"allowed are {', '.join(map(repr, OFFERED))}")
        return name

    @model_validator(mode="after")
    def _fits_together(self) -> VisionConfig:
        if self.evaluation == "central" and not self.averages:
            raise ValueError(
                f"evaluation 'central' needs averaged lower segments, which {self.strategy} has "
                "not; allowed with it are 'federated', 'benchmark', 'none' and 'auto'"
            )
        if self.pretrained and self.depth:
            raise ValueError(
                f"depth is {self.depth}, but pretrained weights are those of the model's own "
                "depth; allowed with pretrained is depth 0"
            )
        # A strategy knows best what it refuses.
        trial = self.trial()
        trial.prepare(None)
        if self.cut_at and _edge(trial):
            raise ValueError(
                f"cut-at is {self.cut_at!r}, but {self.strategy} has a cut of its own; allowed "
                "with it is ''"
            )
        return self

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> VisionConfig:
        """Check a run configuration.

        Raises
        ------
        ConfigError
            One sentence for each wrong key.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError("; ".join(map(_sentence, error.errors()))) from None

    @property
    def averages(self) -> bool:
        """Whether the strategy averages lower segments."""
        return STRATEGIES[self.strategy].averages

    def trial(self) -> SplitStrategy:
        """Make the strategy without a model: to ask it what it refuses and what it needs."""
        options = self.own_options()
        if self.needs_labels:
            options["labels"] = ()
        return STRATEGIES[self.strategy](nn.Identity(), num_classes=2, device="cpu", **options)

    def own_options(self) -> dict[str, Any]:
        """Return the strategy's own options: those that its constructor names and a key has."""
        named = _own(self.strategy).keys() & VisionConfig.model_fields.keys()
        values = {name: getattr(self, name) for name in named}
        return {k: None if v == MEANS_NONE.get(k) else v for k, v in values.items()}

    @property
    def needs_labels(self) -> bool:
        """Whether the server must have the clients' labels."""
        return "labels" in _own(self.strategy)

    @property
    def evaluation_kind(self) -> Literal["central", "federated", "benchmark", "none"]:
        if self.evaluation != "auto":
            return self.evaluation
        return "central" if self.averages else "benchmark"

    @property
    def evaluation_over_link(self) -> Literal["federated", "benchmark", "none"]:
        kind = self.evaluation_kind
        return "none" if kind == "central" else kind

    def images(self) -> ImageSets:
        return load_images(self.dataset, image_size=self.image_size)

    def client_images(self, client: int, clients: int) -> tuple[ImageDataset, ImageDataset]:
        """Return the training and the test images of one client."""
        return client_split(
            self.images(),
            client,
            clients,
            scheme=self.partition,
            alpha=self.partition_alpha,
            seed=self.seed,
            samples=self.samples_per_client,
        )

    def segments(self) -> SplitModel:
        """Build lower and upper segment; every process of a run gets the same weights."""
        return _segments(self)

    def optimizer(self) -> OptimizerFactory:
        return adamw(self.lr, self.weight_decay)

    def schedule(self) -> WarmupCosine:
        # Spec section 8: linear from 1e-6, down to 1e-5, at any peak.
        return WarmupCosine(
            self.warmup_epochs / self.epochs_per_round,
            min(1.0, 1e-6 / self.lr),
            min(1.0, 1e-5 / self.lr),
        )


@lru_cache(maxsize=2)
def _segments(config: VisionConfig) -> SplitModel:
    images, trial = config.images(), config.trial()
    options: dict[str, Any] = {
        "num_classes": len(images.classes),
        "channels": images.train.shape[0],
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "depth": config.depth or None,
        "seed": config.seed,
    }
    if config.pretrained:
        options["pretrained"] = True
    try:
        if edge := _edge(trial):
            return split_shuffled_edge(config.model, **edge, **options)
        return split_vision_model(
            config.model,
            cut_at=config.cut_at,
            cell=config.cell,
            positions=trial.mixer.positions or "lower",
            **options,
        )
    except (OSError, RuntimeError) as error:
        if not config.pretrained:
            raise
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"run-config: pretrained weights of {config.model} could not be loaded: {reason}"
        ) from error


def _edge(strategy: SplitStrategy) -> dict[str, Any] | None:
    """Return how the strategy's frozen edges shuffle; None: it has none."""
    return getattr(strategy, "edge", None)


def _own(strategy: str) -> dict[str, bool]:
    """Return the options that the constructor of a strategy names, and whether it needs them."""
    parameters = inspect.signature(STRATEGIES[strategy]).parameters.values()
    return {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}


OFFERED = tuple(
    strategy
    for strategy in STRATEGIES
    if {option for option, needed in _own(strategy).items() if needed}
    <= {"labels", *VisionConfig.model_fields}
)
"""Names of the strategies that the keys are enough to make."""


def _sentence(error: Any) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        known = ", ".join(name.replace("_", "-") for name in VisionConfig.model_fields)
        return f"run-config has an unknown key {key!r}; allowed are {known}"
    if error["type"] == "missing":
        return f"run-config lacks {key!r}"
    message = error["msg"].removeprefix("Value error, ")
    if not key:
        return f"run-config: {message}"
    return f"run-config: {key} is {error['input']!r}; {message[:1].lower()}{message[1:]}"
