"""A cell of an experiment's table: the plain values that define one training run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from flwr_splitmix.experiments.option_types import REAL_VALUED
from flwr_splitmix.runs import RunError
from flwr_splitmix.values import MAX_COUNT
from flwr_splitmix.words import allowed_range

Value = bool | int | float | str | None
OptionValues = tuple[tuple[str, Value], ...]
"""Keyword options as sorted pairs, because a dictionary is not hashable."""

Partition = Literal["iid", "dirichlet"]
ServerUpdate = Literal["sequential", "sum", "mean"]

DIRICHLET = 0.1
"""Concentration of the non-IID partition over labels (CutMixSL, appendix C)."""


class ExperimentError(RunError):
    """An experiment or a cell cannot be run or shown as requested; the message is for the user."""


Defence = Literal["none", "blur", "adversarial"]
"""Names in `attacks.defences`, which is not imported as it loads torch."""

Embedding = Literal["patch", "tokens-to-token"]
"""Embeddings of frozen edges, as in `segments.vision.shuffled_edge`, which loads torch, too."""


@dataclass(frozen=True)
class Variant:
    """Values that an experiment varies: method and options, model, clients, partition.

    Parameters
    ----------
    method
        Name of a strategy in `flwr_splitmix.strategies`, or of a baseline.
    options
        Keyword options of the strategy, sorted by name; make them with `variant`. Options of noise
        are the values of a `GaussianNoise`, by name; for the U shape, they are the clients'.
    model
        The paper's name of the model; a scale defines its substitute.
    clients
        Number of clients n.
    partition
        Partition of the training data: "iid", or "dirichlet" with concentration 0.1.
    server_update
        Replaces the recipe's: "sum" is one joint step for all groups.
    cut_at
        Cut of the model; None for the default of the method.
    defence
        Further defence of each client: "blur" or "adversarial", as in `attacks.defences`.
    public_corpora
        For texts, names in `public_corpora.PUBLIC_CORPORA`: the corpus on which the calibrator
        is trained, and the corpus of supports; None takes both from all public texts.
    embedding
        Embedding of a frozen edge; "tokens-to-token" has random weights at every scale.
    """

    method: str
    options: OptionValues = ()
    model: str = "ViT-Tiny"
    clients: int = 10
    partition: Partition = "iid"
    server_update: ServerUpdate | None = None
    cut_at: str | None = None
    defence: Defence = "none"
    public_corpora: tuple[str, str] | None = None
    embedding: Embedding = "patch"


def variant(
    method: str,
    options: Mapping[str, Value] | None = None,
    *,
    model: str = "ViT-Tiny",
    clients: int = 10,
    partition: Partition = "iid",
    server_update: ServerUpdate | None = None,
    cut_at: str | None = None,
    defence: Defence = "none",
) -> Variant:
    """Make a `Variant` from keyword options of the strategy."""
    strategy_options = as_options(options or {})
    return Variant(
        method, strategy_options, model, clients, partition, server_update, cut_at, defence
    )


def as_options(options: Mapping[str, Value]) -> OptionValues:
    """Return keyword options as sorted pairs, with real-valued options as floats."""
    return tuple(
        (name, float(value) if name in REAL_VALUED and value is not None else value)
        for name, value in sorted(options.items())
    )


@dataclass(frozen=True)
class TextRecipe:
    """Part of a recipe for cells that train a language model in the U shape.

    Parameters
    ----------
    corpus
        Key of `corpora.CORPORA`: the files to read in a data set's folder.
    max_length
        Maximum number of tokens; longer texts are truncated, in training and test.
    public_texts, public_words
        Number of the clients' public sentences, and their maximum number of words. A mixture is as
        long as the longest text in it, and so is the trunk's mask: it covers filler after the end
        of shorter texts, which supports shorter than most texts do not cause.
    new_tokens
        Maximum number of tokens of an answer generated for its score; 0 for classification.
    """

    corpus: str
    max_length: int
    public_texts: int
    public_words: int
    new_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training and measurement of a cell, the same for all methods of a table at one scale.

    Parameters
    ----------
    scale
        Name of the scale.
    samples, batch_size
        Number of training images or texts of each client (0 for all), and number of them per
        client and step.
    epochs, warmup_epochs
        Epochs of the whole run, and of the warm-up; a round is one epoch.
    image_size
        Side in pixels; smaller images are padded with black.
    test_images
        Size of the common test set of images or texts, a seeded choice; 0 for all.
    evaluations
        Number of evenly spaced rounds at which the test set is scored; the last round always is.
    checkpoints
        Likewise for checkpoints, from which an interrupted cell continues.
    optimizer, lr, weight_decay, start_lr, final_lr
        "adamw" or "sgd" (momentum 0.9); peak learning rate, weight decay, first and last learning
        rate.
    head_lr
        Peak learning rate of the classifier with SGD; None for `lr`.
    server_update
        See `SplitStrategy`. The scales use "sequential", as CutMixSL's Algorithm 2 does; its
        equation 4 and the other papers take one joint step. The default, one joint step, is the
        value of all cells run before the scales did.
    resize
        Side in pixels to which images are enlarged after padding; None for no resizing.
    texts
        Values for language models; None if the cell trains on images.
    public_corpora
        As in `Variant`.
    """

    scale: str
    samples: int
    batch_size: int
    epochs: int
    warmup_epochs: float
    image_size: int = 32
    test_images: int = 0
    evaluations: int = 1
    checkpoints: int = 1
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.05
    start_lr: float = 1e-6
    final_lr: float = 1e-5
    head_lr: float | None = None
    server_update: ServerUpdate = "sum"
    resize: int | None = None
    texts: TextRecipe | None = None
    public_corpora: tuple[str, str] | None = None

    def with_epochs(self, epochs: int) -> Recipe:
        """Return the recipe with another number of epochs, at most half of them warm-up.

        Raises
        ------
        ExperimentError
            If `epochs` is not in 1..MAX_COUNT.
        """
        if not 1 <= epochs <= MAX_COUNT:
            raise ExperimentError(f"epochs is {epochs}; {allowed_range(1, MAX_COUNT)}")
        return replace(self, epochs=epochs, warmup_epochs=min(self.warmup_epochs, epochs / 2))

    @property
    def evaluate_every(self) -> int:
        """Number of rounds between evaluations."""
        return -(-self.epochs // self.evaluations)

    @property
    def checkpoint_every(self) -> int:
        """Number of rounds between checkpoints."""
        return -(-self.epochs // self.checkpoints)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run of a table: a variant on a data set, with a seed and a recipe.

    Experiments that need the same run have equal cells, so it is run once.

    Parameters
    ----------
    method, options, clients, partition, defence
        As in `Variant`.
    model, model_options
        Arguments of `split_vision_model`; for texts, a pretrained encoder and its cut.
    dataset
        Name of the data set, see `dataset_name`; the cell does not depend on the files' location.
    seed
        Seed of weights, partition, batches, groups and masks.
    recipe
        Training and measurement.
    """

    method: str
    options: OptionValues
    model: str
    model_options: OptionValues
    clients: int
    partition: Partition
    dataset: str
    seed: int
    recipe: Recipe
    defence: Defence = "none"

    @property
    def identity(self) -> dict[str, Any]:
        """All values that define the cell, as plain JSON values.

        A recipe's default values are left out, so that a new field does not change old cells.
        """
        recipe = _without_defaults(self.recipe)
        if self.recipe.texts is not None:
            recipe["texts"] = _without_defaults(self.recipe.texts)
        return {
            "strategy": self.method,
            "options": dict(self.options),
            "model": self.model,
            "model-options": dict(self.model_options),
            "clients": self.clients,
            "partition": self.partition,
            "dataset": self.dataset,
            "seed": self.seed,
            "recipe": recipe,
            **({} if self.defence == "none" else {"defence": self.defence}),
        }

    @property
    def id(self) -> str:
        """Name that depends only on `identity`, such as cutmixsl-vit_tiny-n10-s0-1f0c9a2b7d3e."""
        packed = json.dumps(self.identity, sort_keys=True, separators=(",", ":")).encode()
        digest = blake2b(packed, digest_size=6).hexdigest()
        model = re.sub(r"_patch.*", "", self.model)
        return f"{self.method.lower()}-{model}-n{self.clients}-s{self.seed}-{digest}"

    @property
    def config(self) -> dict[str, Any]:
        """Content of the run's config.json; `splitmix runs` and `splitmix show` read it, too."""
        return {
            "cell": self.id,
            "scale": self.recipe.scale,
            "num-server-rounds": self.recipe.epochs,
            **self.identity,
        }

    @property
    def words(self) -> tuple[str, ...]:
        """Words for a filter: method, options, model, clients, partition, data set, seed, ..."""
        return (
            self.method,
            *(f"{name}={_short(name, value)}" for name, value in self.options),
            self.model,
            f"n={self.clients}",
            self.partition,
            self.dataset,
            f"seed={self.seed}",
            *(() if self.defence == "none" else (self.defence,)),
            *(str(value) for name, value in self.model_options if name == "embedding"),
            *(f"public={name}" for name in self.recipe.public_corpora or ()),
        )

    def __str__(self) -> str:
        return " ".join(word for word in self.words if word not in ("iid", self.dataset))


def _without_defaults(values: Recipe | TextRecipe) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(values)}
    return {name: value for name, value in asdict(values).items() if value != defaults[name]}


def _short(name: str, value: Value) -> str:
    if value is None:
        return "inf" if name == "alpha" else "none"  # alpha: as even as possible
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def dataset_name(source: str) -> str:
    """Return the name of a data set: a folder's own name, or a shipped or hub name unchanged.

    So a cell does not depend on the folder's location, and its run can be shown on other machines.
    """
    folder = Path(source).expanduser()
    hub = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    return source if hub and not folder.is_dir() else folder.resolve().name
