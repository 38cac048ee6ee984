"""The description of an exported model, splitmix.json, with all that predictions need.

Its values are checked for their types and their ranges: a folder may come from anywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from flwr_splitmix.data.images.preprocessing import Preprocessing
from flwr_splitmix.runs.export.folder import FACTS, ExportError, check_files, read_facts

LARGEST_SIDE = 2048
"""Largest side in pixels of a model's images: nothing else bounds a convolutional one's."""

MAX_TOKENS = 2**20
"""Most tokens of a text and of an answer; a model with fewer positions takes fewer."""

Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Arguments(_Checked):
    """Arguments of both functions; no others are passed on, as some of timm's read files."""

    model_config = ConfigDict(extra="forbid")

    name: str
    num_classes: int
    channels: int
    image_size: Side
    patch_size: Side
    depth: Annotated[int, Field(ge=1)] | None


class _CutArguments(_Arguments):
    cut_at: str | None
    cell: Side
    positions: Literal["lower", "upper"]


class _EdgeArguments(_Arguments):
    method: str
    kappa: float
    embedding: str = "patch"


class _Cut(_Checked):
    made_by: Literal["split_vision_model"]
    arguments: _CutArguments


class _Edge(_Checked):
    made_by: Literal["split_shuffled_edge"]
    arguments: _EdgeArguments


class VisionDescription(_Checked):
    """The parts of a vision model's description that predictions need.

    Attributes
    ----------
    classes
        Names of the classes, by label.
    multi_label
        Whether an image may have several of them.
    preprocessing
        The steps applied to an image of any size.
    segments
        The function that makes the segments, a key of `SPLITS`, and its arguments.
    """

    kind: Literal["vision"]
    classes: list[str]
    multi_label: StrictBool = False
    preprocessing: Annotated[Preprocessing, PlainValidator(Preprocessing.from_facts)]
    segments: Annotated[_Cut | _Edge, Field(discriminator="made_by")]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Refuse sizes that differ from the values that they must equal, and so bound them."""
        steps, arguments = self.preprocessing, self.segments.arguments
        for name, value, source, other in (
            ("num_classes", arguments.num_classes, "classes has", len(self.classes)),
            ("channels", arguments.channels, "preprocessing has", steps.channels),
            ("image_size", arguments.image_size, "preprocessing has", steps.image_size),
        ):
            if value != other:
                raise ValueError(f"segments.arguments.{name} is {value}, but {source} {other}")
        if max(steps.stored_size) > steps.image_size:
            raise ValueError("preprocessing.stored_size is larger than its image_size")
        return self


class LanguageDescription(_Checked):
    """The parts of a language model's description that predictions need.

    Attributes
    ----------
    classes
        Names of the classes, by label; empty for a model that generates text.
    pairs
        Whether it classifies pairs of sentences.
    max_length, max_new_tokens
        Most tokens of a text, and of an answer.
    prompt
        For a model that generates text, the text around a question, with "{}" in its place.
    """

    kind: Literal["language"]
    task: Literal["classification", "generation"]
    classes: list[str]
    pairs: StrictBool = False
    max_length: Tokens
    max_new_tokens: Tokens
    prompt: str | None = None

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.task == "generation" and (self.prompt or "").count("{}") != 1:
            raise ValueError('prompt has no place for a question, which is one "{}"')
        return self


Description = VisionDescription | LanguageDescription

_ANY: TypeAdapter[Description] = TypeAdapter(Annotated[Description, Field(discriminator="kind")])

_KINDS = ("vision", "language", "split_vision_model", "split_shuffled_edge")


def read_description(folder: Path) -> Description:
    """Read the description of an exported model.

    Raises
    ------
    ExportError
        If the folder holds no description that this version can read, a value in it is missing,
        of another type or out of range, or a file of the model is not a regular file.
    """
    facts = read_facts(folder)
    check_files(folder)
    try:
        return _ANY.validate_python(facts)
    except ValidationError as error:
        raise ExportError(
            f"cannot read {folder / FACTS}: {_in_words(error.errors()[0])}; export the run again"
        ) from error


def _in_words(wrong: Any) -> str:
    """Return an error of pydantic's with its key, or the keys that it names."""
    key = ".".join(str(part) for part in wrong["loc"] if part not in _KINDS)
    message = str(wrong["msg"]).removeprefix("Value error, ")
    return f"{key}: {message}" if key else message
