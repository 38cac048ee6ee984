"""A cell of an experiment's table: the plain values that define one training run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from flwr_splitmix.experiments.option_types import scale_options
from flwr_splitmix.runs import RunError

Value = bool | int | float | str | None
OptionValues = tuple[tuple[str, Value], ...]
"""Keyword options as sorted pairs: a dictionary would not hash."""

Partition = Literal["iid", "dirichlet"]
ServerUpdate = Literal["sequential", "sum", "mean"]

DIRICHLET = 0.1
"""Concentration of the non-IID partition over labels (CutMixSL, appendix C)."""


class ExperimentError(RunError):
    """An experiment or a cell cannot be run or shown as asked; the message is for the user."""


Defence = Literal["none", "blur", "adversarial"]
"""As in `attacks.defences`, which loads torch."""


@dataclass(frozen=True)
class Variant:
    """What an experiment varies: the method with its options, the model, clients, partition.

    Parameters
    ----------
    method
        Name of a strategy in `flwr_splitmix.strategies`, or of a baseline.
    options
        Keyword options of the strategy, sorted by name; make them with `variant`. Those of noise
        are the values of a `GaussianNoise`, by name; of the U shape they are the clients'.
    model
        The paper's name of the model; a scale says what it stands for.
    clients
        n.
    partition
        How the training images are divided: "iid", or "dirichlet" with concentration 0.1.
    server_update
        Instead of the recipe's: "sum" is one joint step for all groups.
    cut_at
        Where the model is cut; None is the method's own cut.
    defence
        What each client does besides: "blur" or "adversarial", as in `attacks.defences`.
    public_corpora
        Of texts, names of `public_corpora.PUBLIC_CORPORA`: which the calibrator learns on, and
        which are supports; None takes both from all public texts.
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
    """Make a `Variant` from the strategy's keyword options."""
    own = as_options(options or {})
    return Variant(method, own, model, clients, partition, server_update, cut_at, defence)


def as_options(options: Mapping[str, Value]) -> OptionValues:
    """Return keyword options as sorted pairs, numbers on a scale as floats."""
    return tuple(
        (name, float(value) if name in scale_options() and value is not None else value)
        for name, value in sorted(options.items())
    )


@dataclass(frozen=True)
class TextRecipe:
    """What a recipe says of a cell that trains a language model in the U shape.

    Parameters
    ----------
    corpus
        Which files of a data set's folder are read, see `text_data.CORPORA`.
    max_length
        Tokens; longer texts are cut, in training and test alike.
    public_texts, public_words
        How many public sentences the clients have, and the most words of each. A mixture is as
        long as the longest text in it, and the trunk's mask covers that: behind a text's own end
        it sees filler, which a support that is shorter than most texts does not cause.
    new_tokens
        Most tokens of an answer that is generated for its score; 0 where texts are classified.
    """

    corpus: str
    max_length: int
    public_texts: int
    public_words: int
    new_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a cell is trained and measured: what a scale fixes for all of a table's methods.

    Parameters
    ----------
    scale
        The scale's name.
    samples, batch_size
        Training images or texts of each client, and how many of them a client takes in a step.
    epochs, warmup_epochs
        Of the whole run; a round is one epoch.
    image_size
        Pixels; smaller images are padded with black.
    test_images
        Size of the common test set, of images or texts, a seeded choice; 0 takes all.
    evaluations
        Number of evenly spaced points at which the test set is scored; the last round always is.
    checkpoints
        Likewise for checkpoints, which an interrupted cell continues from.
    optimizer, lr, weight_decay, start_lr, final_lr
        "adamw" or "sgd" (momentum 0.9); peak, first and last learning rate.
    head_lr
        Peak learning rate of the classifier alone; None is `lr`.
    server_update
        See `SplitStrategy`. The scales say "sequential", the papers'; the default, one joint
        step, is what every cell had that was run before they did.
    resize
        Pixels that images are enlarged to after padding; None leaves them.
    texts
        For language models; None: the cell trains on images.
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
        """Return the recipe with another length; warm-up, if any, is at most half of it.

        Raises
        ------
        ExperimentError
            If `epochs` < 1.
        """
        if epochs < 1:
            raise ExperimentError(f"epochs is {epochs}; at least 1 is needed")
        return replace(self, epochs=epochs, warmup_epochs=min(self.warmup_epochs, epochs / 2))

    @property
    def evaluate_every(self) -> int:
        """Rounds between evaluations."""
        return -(-self.epochs // self.evaluations)

    @property
    def checkpoint_every(self) -> int:
        """Rounds between checkpoints."""
        return -(-self.epochs // self.checkpoints)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run of a table: a variant on a data set, with a seed and a recipe.

    Two experiments that need the same run have equal cells, so it is run once.

    Parameters
    ----------
    method, options, clients, partition, defence
        As in `Variant`.
    model, model_options
        Arguments of `split_vision_model`; for texts a pretrained encoder, and its cut.
    dataset
        The data set's name, see `dataset_name`: where its files lie makes no other cell.
    seed
        Of weights, partition, batches, groups and masks.
    recipe
        How it is trained.
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
        """All that makes the cell what it is, as plain JSON values.

        A recipe's values at their defaults are left out, so that a new one changes no old cell.
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
        """A name that follows from `identity` alone: cutmixsl-vit_tiny-n10-s0-1f0c9a2b7d3e."""
        packed = json.dumps(self.identity, sort_keys=True, separators=(",", ":")).encode()
        digest = blake2b(packed, digest_size=6).hexdigest()
        model = re.sub(r"_patch.*", "", self.model)
        return f"{self.method.lower()}-{model}-n{self.clients}-s{self.seed}-{digest}"

    @property
    def config(self) -> dict[str, Any]:
        """What the run's config.json says; `splitmix runs` and `splitmix show` read it too."""
        return {
            "cell": self.id,
            "scale": self.recipe.scale,
            "num-server-rounds": self.recipe.epochs,
            **self.identity,
        }

    @property
    def words(self) -> tuple[str, ...]:
        """What a filter can ask for: method, options, model, clients, partition, seed."""
        return (
            self.method,
            *(f"{name}={_short(name, value)}" for name, value in self.options),
            self.model,
            f"n={self.clients}",
            self.partition,
            self.dataset,
            f"seed={self.seed}",
            *(() if self.defence == "none" else (self.defence,)),
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
    """Return the name of a data set: a folder's own name, or a shipped or hub name as it is.

    So a cell is the same wherever the folder lies, and its run can be shown on another machine.
    """
    folder = Path(source).expanduser()
    hub = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    return source if hub and not folder.is_dir() else folder.resolve().name
