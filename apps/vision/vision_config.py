"""Every hyper-parameter of the app, checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from flwr_splitmix import WarmupCosine, adamw, split_vision_model
from flwr_splitmix.data import ImageSets, load_images
from flwr_splitmix.schedule import OptimizerFactory
from flwr_splitmix.segments import SplitModel

Count = Annotated[int, Field(ge=1)]
CountOrAuto = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

AVERAGING = ("SFL", "CutMixSFL")
MIXING = ("CutMixSL", "CutMixSFL")


class ConfigError(ValueError):
    """The run configuration is wrong; the sentence names key, value and what is allowed."""


class VisionConfig(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=lambda name: name.replace("_", "-"),
        protected_namespaces=(),
    )

    strategy: Literal["PSL", "SFL", "CutMixSL", "CutMixSFL"]
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
    model: str
    depth: CountOrAuto
    image_size: Count
    patch_size: Count
    cut_at: str
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

    @model_validator(mode="after")
    def _fits_together(self) -> VisionConfig:
        if self.evaluation == "central" and self.strategy not in AVERAGING:
            raise ValueError(
                f"evaluation 'central' needs averaged lower segments, which {self.strategy} has "
                "not; allowed with it are 'federated', 'benchmark', 'none' and 'auto'"
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
    def evaluation_kind(self) -> Literal["central", "federated", "benchmark", "none"]:
        if self.evaluation != "auto":
            return self.evaluation
        return "central" if self.strategy in AVERAGING else "benchmark"

    @property
    def evaluation_over_link(self) -> Literal["federated", "benchmark", "none"]:
        kind = self.evaluation_kind
        return "none" if kind == "central" else kind

    @property
    def mixing_alpha(self) -> float | None:
        return None if math.isinf(self.alpha) else self.alpha

    def images(self) -> ImageSets:
        return load_images(self.dataset, image_size=self.image_size)

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
    images = config.images()
    return split_vision_model(
        config.model,
        cut_at=config.cut_at,
        num_classes=len(images.classes),
        channels=images.train.shape[0],
        image_size=config.image_size,
        patch_size=config.patch_size,
        depth=config.depth or None,
        seed=config.seed,
    )


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
