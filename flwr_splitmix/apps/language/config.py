"""The run configuration of the language app: all keys, checked before a run starts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, field_validator, model_validator

from flwr_splitmix.apps.configuration.run_config import (
    AppConfig,
    Count,
    CountOrAuto,
    NotNegative,
    Positive,
    Rate,
)
from flwr_splitmix.apps.ushape.needs import check_batch, check_learns, check_options
from flwr_splitmix.clients.ushape.ends import Learns
from flwr_splitmix.data.texts.columns import EmptyTexts, TextColumns
from flwr_splitmix.data.texts.generated import GENERATED
from flwr_splitmix.data.texts.rows import TextTask
from flwr_splitmix.data.texts.tokens import LongTexts
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.hiding.dp_forward import Sensitivity
from flwr_splitmix.hiding.making import hiding_options
from flwr_splitmix.hiding.mixguard.options import MAX_MIXED, Decoding, Gradients, TrunkMask
from flwr_splitmix.hiding.mixguard.sampler import Sampler
from flwr_splitmix.limits import LARGEST
from flwr_splitmix.methods import BY_NAME
from flwr_splitmix.schedule import WarmupCosine
from flwr_splitmix.segments.language import LanguageCut
from flwr_splitmix.segments.language.cutting import PARTS
from flwr_splitmix.server.aggregation import AggregatorName
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from flwr_splitmix.suggestions import allowed

SMALL = "small"
"""Name of the built-in model with random weights."""

SECRET_TOKENS: dict[TextTask, int] = {"classification": 20, "generation": 40}
"""Number of secret tokens per text (MixGuard, appendix A.2)."""

MEANS_NONE: dict[str, object] = {
    "calibration_rank": 0,
    "perturbation": "none",
    "pad_to": 0,
    "max_distortion": 0.0,
    "max_leak": 0.0,
    "max_amplification": 0.0,
}
"""Values that stand for None, which a run configuration cannot contain."""

TextWire = Literal["keep", "float32", "bfloat16", "float16", "int8", "int8-stochastic"]


class LanguageConfig(AppConfig):
    """Configuration keys of `apps/language`, as described in docs/configuration.md."""

    # int4 is for smashed data of images.
    wire_dtype: TextWire
    wire_dtype_down: TextWire | Literal[""]
    strategy: str
    task: TextTask
    aggregator: Literal["auto", AggregatorName]
    model: Annotated[str, Field(min_length=1)]
    small_width: Annotated[int, Field(ge=8, le=8192, multiple_of=8)]
    small_layers: Annotated[int, Field(ge=1, le=1000)]
    small_vocabulary: Annotated[int, Field(ge=258, le=2**20)]
    head_layers: CountOrAuto
    tail_layers: CountOrAuto
    lora_rank: CountOrAuto
    lora_alpha: Positive
    lora_parts: str
    learns: Learns
    dtype: Literal["float32", "bfloat16"]
    gradient_checkpointing: StrictBool
    dataset: Annotated[str, Field(min_length=1)]
    test_dataset: str
    text_column: Annotated[str, Field(min_length=1)]
    second_text_column: str
    label_column: Annotated[str, Field(min_length=1)]
    question_column: Annotated[str, Field(min_length=1)]
    answer_column: Annotated[str, Field(min_length=1)]
    num_labels: Annotated[int, Field(ge=2, le=2**16)]
    partition: Literal["iid", "dirichlet", "column"]
    partition_alpha: Annotated[float, Field(gt=0, le=1e9)]
    partition_column: str
    samples_per_client: CountOrAuto
    test_samples_per_client: CountOrAuto
    public: str
    public_unit: Literal["auto", "sentence", "paragraph"]
    public_words: Annotated[int, Field(ge=4)]
    public_samples: CountOrAuto
    max_length: Count
    pad_to: CountOrAuto
    long_texts: LongTexts
    empty_texts: EmptyTexts
    padding_token: str
    k: Annotated[int, Field(ge=2, le=MAX_MIXED)]
    m: Annotated[int, Field(ge=2, le=MAX_MIXED)]
    secret_tokens: Annotated[int, Field(ge=-1)]
    support_texts: CountOrAuto
    calibration_epochs: CountOrAuto
    calibration_rank: CountOrAuto
    calibration_blocks: Count
    calibration_lr: Rate
    refine_every: CountOrAuto
    refine_only: StrictBool
    perturbation: Literal["adaptive", "constant", "none"]
    strength: Annotated[float, Field(ge=0, le=LARGEST)]
    gradients: Gradients
    secret_per_sample: StrictBool
    sampler: Sampler
    support_scale: Positive
    max_distortion: NotNegative
    max_leak: Annotated[float, Field(ge=0, lt=1)]
    max_amplification: NotNegative
    decoding: Decoding
    mask: TrunkMask
    calibrated_inference: StrictBool
    lam: Annotated[float, Field(ge=0.001, le=1)]
    epsilon: Annotated[float, Field(ge=1e-4, le=LARGEST)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    clip_norm: Annotated[float, Field(gt=0, le=LARGEST)]
    sensitivity: Sensitivity
    releases: Count
    dcor_weight: Annotated[float, Field(ge=0, le=LARGEST)]
    eta: Annotated[float, Field(ge=0.001, le=LARGEST)]
    noise_multiplier: Annotated[float, Field(gt=0, le=LARGEST)]
    evaluation: Literal["auto", "federated", "benchmark", "none"]
    generation_scores: StrictBool
    max_new_tokens: Annotated[int, Field(ge=1, le=4000)]

    @field_validator("strategy")
    @classmethod
    def _is_there(cls, name: str) -> str:
        if name in BY_NAME and BY_NAME[name].shape == "L":
            raise ValueError("it is for images, in apps/vision")
        if name not in USHAPE_STRATEGIES:
            raise ValueError(allowed(name, USHAPE_STRATEGIES, "docs/configuration.md"))
        return name

    @field_validator("lora_parts")
    @classmethod
    def _are_parts(cls, names: str) -> str:
        parts = [name.strip() for name in names.split(",")]
        if not set(parts) <= set(PARTS) or len(set(parts)) < len(parts):
            raise ValueError(
                f"it must be some of {', '.join(PARTS)}, with commas between, each once"
            )
        return ",".join(parts)

    @model_validator(mode="after")
    def _model_can_be_cut(self) -> LanguageConfig:
        if self.model == SMALL:
            try:
                self.cut.spans(self.small_layers)
            except ValueError as error:
                raise ValueError(
                    f"head-layers is {self.head_layers} and tail-layers {self.tail_layers}: {error}"
                ) from None
        return self

    @model_validator(mode="after")
    def _adapters_have_a_place(self) -> LanguageConfig:
        for part, layers in (("head", self.head_layers), ("tail", self.tail_layers)):
            if part in self.adapted and not layers:
                raise ValueError(
                    f"lora-rank is {self.lora_rank} and lora-parts names {part!r}, but "
                    f"{part}-layers is 0, so that it has no layer to adapt; leave {part!r} out of "
                    "lora-parts"
                )
        if self.learns == "tail" and self.adapted and "tail" not in self.adapted:
            raise ValueError(
                f"lora-parts is {self.lora_parts!r}, but learns is 'tail', so that no adapter "
                "would learn; use lora-parts with 'tail', or lora-rank 0"
            )
        return self

    @model_validator(mode="after")
    def _data_go_together(self) -> LanguageConfig:
        if self.partition == "column" and not (self.partition_column or self.made_up):
            raise ValueError(
                "partition is 'column', but partition-column is ''; it must name a column"
            )
        if self.partition == "dirichlet" and self.task == "generation":
            raise ValueError(
                "partition is 'dirichlet', which is over labels, but task is 'generation'; use "
                "'iid' or 'column' with it"
            )
        if self.generation_scores and self.task != "generation":
            raise ValueError(
                f"generation-scores is true, but task is {self.task!r}; it must be false"
            )
        return self

    @model_validator(mode="after")
    def _texts_have_room(self) -> LanguageConfig:
        if self.pad_to > self.max_length:
            raise ValueError(
                f"pad-to is {self.pad_to}, but max-length {self.max_length}; it must be at most "
                "that, or 0"
            )
        if self.text_length < 2:
            key = "pad-to" if self.pad_to else "max-length"
            most = max(self.width - 2, 0)
            remedy = f", or secret-tokens of at most {most}" if self.secrets else ""
            raise ValueError(
                f"{key} is {self.width}, of which {self.secrets} are secret tokens (secret-tokens "
                f"is {self.secret_tokens}); at least {self.secrets + 2} are needed{remedy}"
            )
        return self

    @model_validator(mode="after")
    def _heads_learn_what_they_must(self) -> LanguageConfig:
        check_learns(self.strategy, self.learns)
        if not self.head_layers and self.hides_by.teaches_head:
            raise ValueError(
                f"head-layers is 0, but strategy is {self.strategy!r}, which works only by "
                "training the head's layers to reveal less of the embeddings; it must be "
                "at least 1"
            )
        return self

    @model_validator(mode="after")
    def _batches_are_large_enough(self) -> LanguageConfig:
        check_batch(self.strategy, self.batch_size, texts=True)
        return self

    @model_validator(mode="after")
    def _layers_can_be_watched(self) -> LanguageConfig:
        if self.hides_by.watches_layers and self.gradient_checkpointing:
            raise ValueError(
                f"gradient-checkpointing is true, but strategy is {self.strategy!r}, which watches "
                "every layer's inputs; it must be false"
            )
        return self

    @model_validator(mode="after")
    def _own_options_agree(self) -> LanguageConfig:
        check_options(self.strategy, self.own_options())
        return self

    @property
    def hides_by(self) -> type[Hiding]:
        """The class of the clients' hiding."""
        return USHAPE_STRATEGIES[self.strategy].hiding

    @property
    def cut(self) -> LanguageCut:
        """Numbers of layers in head and tail."""
        return LanguageCut(self.head_layers, self.tail_layers)

    @property
    def adapted(self) -> tuple[str, ...]:
        """The parts that have adapters."""
        return tuple(self.lora_parts.split(",")) if self.lora_rank else ()

    @property
    def made_up(self) -> bool:
        """Whether the texts are generated."""
        return self.dataset == GENERATED

    @property
    def averages(self) -> bool:
        """Whether heads and tails are averaged."""
        return self.aggregator != "auto" or USHAPE_STRATEGIES[self.strategy].averages

    @property
    def secrets(self) -> int:
        """Number of secret tokens in each text."""
        if "secret_tokens" not in hiding_options(self.hides_by):
            return 0
        if self.secret_tokens >= 0:
            return self.secret_tokens
        # As for CoLA (MixGuard, appendix A.2): random words would make a sentence ungrammatical.
        grammar = self.made_up and self.task == "classification"
        return 0 if grammar else SECRET_TOKENS[self.task]

    @property
    def width(self) -> int:
        """Maximum number of tokens of a text that crosses the cuts, with its secret tokens."""
        return self.pad_to or self.max_length

    @property
    def text_length(self) -> int:
        """Maximum number of tokens of a text without secret tokens."""
        return self.width - self.secrets

    @property
    def pads_itself(self) -> bool:
        """Whether a client's texts are padded to `pad_to`, unless a hiding's own option does it."""
        return bool(self.pad_to) and "pad_to" not in hiding_options(self.hides_by)

    @property
    def unit(self) -> Literal["sentence", "paragraph"]:
        """Unit of a public text."""
        if self.public_unit != "auto":
            return self.public_unit
        return "sentence" if self.task == "classification" else "paragraph"

    @property
    def evaluation_kind(self) -> Literal["federated", "benchmark", "none"]:
        """Kind of evaluation at the clients."""
        return "federated" if self.evaluation == "auto" else self.evaluation

    def columns(self) -> TextColumns:
        """Return the names of the columns in a file or data set."""
        return TextColumns(
            text=self.text_column,
            label=self.label_column,
            question=self.question_column,
            answer=self.answer_column,
            group=self.partition_column,
            second=self.second_text_column,
        )

    def own_options(self) -> dict[str, Any]:
        """Return the options of the clients' hiding, by the names of its arguments.

        Data sets and properties of a tokenizer are not among them.
        """
        values = {name: getattr(self, name) for name in sorted(hiding_options(self.hides_by))}
        if "secret_tokens" in values:
            values["secret_tokens"] = self.secrets
        return {
            name: None if name in MEANS_NONE and value == MEANS_NONE[name] else value
            for name, value in values.items()
        }

    def schedule(self) -> WarmupCosine:
        """Return both sides' schedule: from a thousandth of the peak rate, to a hundredth."""
        return WarmupCosine(self.warmup_epochs / self.epochs_per_round, 1e-3, 1e-2)
