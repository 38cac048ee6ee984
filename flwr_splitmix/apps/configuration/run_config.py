"""The keys of the run configuration that all apps have: rounds, link, devices, storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from flwr_splitmix.apps.configuration.continuing import ROUNDS, check_is_of_app, continued
from flwr_splitmix.apps.configuration.error import ConfigError, key_of, sentence_of
from flwr_splitmix.apps.configuration.link_keys import check_link_keys
from flwr_splitmix.apps.configuration.links import ray_link, stream_link
from flwr_splitmix.description import MAX_SPLIT_BATCH, MAX_USHAPE_BATCH
from flwr_splitmix.device import Precision
from flwr_splitmix.links import AutoLink, Link
from flwr_splitmix.links.frames.feedback import check_feedback
from flwr_splitmix.links.frames.wire import WireDtype, level_bits
from flwr_splitmix.observers import Observer
from flwr_splitmix.observers.trackers import make_trackers
from flwr_splitmix.observers.trackers.choice import split_names
from flwr_splitmix.optimizers import OptimizerFactory, adamw
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.attack_recording import trace_dir

Count = Annotated[int, Field(ge=1, lt=2**31)]
CountOrAuto = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1000)]
"""A learning rate of AdamW, whose steps have about its size."""

MAX_THREADS = 1024

SIMULATED_STREAM = "link 'stream' with a CPU for each client (init-args-num-cpus)"
"""How a simulation has what only a stream does; all clients of a round then run at once."""

_MAX_BATCH = min(MAX_SPLIT_BATCH, MAX_USHAPE_BATCH)
"""Largest batch that clients of either shape may have."""


class TrainingOptions(TypedDict):
    """Strategy options common to both shapes, set by keys that every app has."""

    optimizer: OptimizerFactory
    precision: Precision
    steps_per_round: int | None
    epochs_per_round: int
    fraction_train: float
    evaluate_every: int
    checkpoint_every: int
    seed: int
    run: Run | None
    link: Link
    observers: Sequence[Observer]


_MAX_SAID = 10
"""Most wrong keys that a message names, such as those of another app's run."""


class AppConfig(BaseModel):
    """Configuration keys of every app; an app's own configuration adds others.

    Keys are written with hyphens. Unknown keys and values out of range are rejected.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=lambda name: name.replace("_", "-"),
        protected_namespaces=(),
    )

    num_server_rounds: Count
    epochs_per_round: Count
    steps_per_round: CountOrAuto
    batch_size: Annotated[int, Field(ge=1, le=_MAX_BATCH)]
    lr: Rate
    weight_decay: Annotated[float, Field(ge=0, le=1000)]
    warmup_epochs: NotNegative
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    fraction_train: Annotated[float, Field(gt=0, le=1)]
    min_nodes: CountOrAuto
    evaluate_every: Count
    device: str
    precision: Precision
    server_threads: Annotated[int, Field(ge=0, le=MAX_THREADS)]
    client_device: str
    link: Literal["auto", "ray", "stream"]
    attach_timeout: Positive
    step_timeout: Positive
    num_hosts: CountOrAuto
    host_gpus: NotNegative
    host_threads: Annotated[int, Field(ge=1, le=MAX_THREADS)]
    link_address: str
    link_advertise: str
    link_insecure: StrictBool
    ssl_certfile: str
    ssl_keyfile: str
    ssl_ca_certfile: str
    link_client_ca: str
    wire_dtype: WireDtype
    wire_dtype_down: WireDtype | Literal[""]
    wire_feedback: StrictBool
    label: str
    tracker: str
    run_dir: str
    checkpoint_every: Count
    resume: str
    record_attacks: StrictBool = False

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Check a run configuration.

        Raises
        ------
        ConfigError
            With one sentence for each wrong key.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            keys = [key_of(name) for name in cls.model_fields]
            sentences = [sentence_of(wrong, keys) for wrong in error.errors()]
            more = [f"and {len(sentences) - _MAX_SAID} more"] if len(sentences) > _MAX_SAID else []
            raise ConfigError("; ".join([*sentences[:_MAX_SAID], *more])) from None

    @classmethod
    def of_run(
        cls, values: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
    ) -> tuple[Self, Run | None]:
        """Check a run configuration, and open the run that it continues.

        Parameters
        ----------
        overrides
            Those of `values` that are known to be set by the user: of a continued run they can
            raise the number of rounds, and change addresses, certificates and time limits; the
            others are logged as ignored.

        Returns
        -------
        The effective configuration, which is a continued run's own; and that run, or None.

        Raises
        ------
        ConfigError, RunError
            If a configuration is wrong, there is no such run, or it is still running.
        """
        resume, run_dir = values.get("resume"), values.get("run-dir")
        if not (resume and isinstance(resume, str) and isinstance(run_dir, str | None)):
            return cls.read(values), None
        resumed = Run.open(resume, home=run_dir or None)
        # Other values than these two are not read unless they are taken.
        check_is_of_app(resumed, {key_of(name) for name in cls.model_fields})
        resumed.check_free()
        # A run of an earlier version lacks newer keys: their present values are used, also by the
        # clients, which receive the run's configuration.
        previous = {**values, **resumed.config}
        effective = continued(previous, overrides or {}, resumed.id)
        # The rounds are raised when the run begins.
        resumed.config_file.reconcile({**effective, ROUNDS: previous[ROUNDS]})
        return cls.read(effective), resumed

    @property
    def home(self) -> str | None:
        """Folder of the runs; None for the default."""
        return self.run_dir or None

    def optimizer(self) -> OptimizerFactory:
        """Return the factory of both sides' optimizers."""
        return adamw(self.lr, self.weight_decay)

    def training_options(self, run: Run | None) -> TrainingOptions:
        """Return the strategy options that are set by keys of every app.

        Raises
        ------
        LinkError
            Raised by `make_link`.
        TrackerError
            Raised by `make_observers`.
        """
        return {
            "optimizer": self.optimizer(),
            "precision": self.precision,
            "steps_per_round": self.steps_per_round or None,
            "epochs_per_round": self.epochs_per_round,
            "fraction_train": self.fraction_train,
            "evaluate_every": self.evaluate_every,
            "checkpoint_every": self.checkpoint_every,
            "seed": self.seed,
            "run": run,
            "link": self.make_link(run),
            "observers": self.make_observers(run),
        }

    def make_observers(self, run: Run | None) -> list[Observer]:
        """Make a run's observers: the configured recorder and trackers.

        Raises
        ------
        TrackerError
            If a tracker's package is not installed.
        """
        of_run = [] if run is None else self._recorder(run)
        return [*of_run, *self.make_trackers()]

    def make_trackers(self) -> list[Observer]:
        """Make the configured trackers."""
        return [*make_trackers(self.tracker)]

    def _recorder(self, run: Run) -> list[Observer]:
        if not self.record_attacks:
            return []
        from flwr_splitmix.attacks.recorder import Recorder

        return [Recorder(directory=trace_dir(run))]

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_numbers(cls, value: object, info: ValidationInfo) -> object:
        """Refuse what would else be converted: true to 1, and '32' to 32."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if kind in (int, float) and isinstance(value, (bool, str)):
            expected = "an integer" if kind is int else "a number"
            raise ValueError(f"it must be {expected}, written without quotes")
        return value

    @field_validator("tracker")
    @classmethod
    def _are_trackers(cls, names: str) -> str:
        split_names(names)
        return names

    @model_validator(mode="after")
    def _link_has_the_wire_format(self) -> Self:
        if self.link == "ray" and self.not_in_simulation:
            raise ValueError(self.not_in_simulation)
        down = self.wire_dtype_down or self.wire_dtype
        if level_bits(down) == 4:
            raise ValueError(
                f"wire-dtype-down is {self.wire_dtype_down!r}, so that gradients would travel as "
                f"{down!r}, which is for smashed data; use another wire-dtype-down, e.g. "
                "'int8'"
            )
        if self.wire_feedback:
            check_feedback(down)
        return self

    @model_validator(mode="after")
    def _link_can_be_made(self) -> Self:
        check_link_keys(
            self.link_address,
            self.link_advertise,
            certificate=self.ssl_certfile,
            key=self.ssl_keyfile,
        )
        return self

    @property
    def narrowed(self) -> dict[str, str]:
        """The wire formats other than "keep" that are configured, by their keys."""
        formats = {"wire-dtype": self.wire_dtype, "wire-dtype-down": self.wire_dtype_down}
        return {key: name for key, name in formats.items() if name not in ("keep", "")}

    @property
    def not_in_simulation(self) -> str:
        """Why this cannot run over Ray's link, with the remedy; "" if it can."""
        if not self.narrowed:
            return ""
        narrowed = " and ".join(f"{key} is {name!r}" for key, name in self.narrowed.items())
        return (
            f"{narrowed}, but in a simulation tensors travel as they are; use 'keep' there, or "
            f"{SIMULATED_STREAM}"
        )

    def make_link(self, run: Run | None) -> Link:
        """Make the configured link.

        Raises
        ------
        LinkError
            If the stream's address or certificates are wrong, or the link is Ray's and cannot do
            what is configured.
        """
        if self.link == "ray":
            return ray_link(self, run)
        if self.link == "stream":
            return stream_link(self, run)
        return AutoLink(
            lambda: ray_link(self, run),
            lambda: stream_link(self, run),
            attach_timeout=self.attach_timeout,
        )
