"""The sizes of experiments: smoke (seconds per cell), cpu (minutes), paper (one GPU)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flwr_splitmix.experiments.cells import (
    Cell,
    ExperimentError,
    OptionValues,
    Recipe,
    Value,
    Variant,
    as_options,
    dataset_name,
)
from flwr_splitmix.experiments.texts.recipes import TEXT_RECIPES, Track
from flwr_splitmix.methods import BY_NAME


@dataclass(frozen=True)
class Model:
    """The model used for a paper's model, and the arguments of its cut."""

    name: str
    options: OptionValues = ()


def _model(name: str, **options: Value) -> Model:
    return Model(name, as_options(options))


@dataclass(frozen=True)
class Scale:
    """A size at which every experiment can be run.

    Parameters
    ----------
    name, title
        Name on the command line; short description.
    dataset
        Default data set of images.
    recipes
        Recipes of the cells, by track.
    models
        Models, by the paper's names.
    corpora
        Default data sets of other tracks than the first two.
    """

    name: str
    title: str
    dataset: str
    recipes: Mapping[Track, Recipe]
    models: Mapping[str, Model]
    corpora: Mapping[Track, str] = field(default_factory=dict)

    def source(self, track: Track) -> str:
        """Return the default data set of a track's cells."""
        return self.corpora.get(track, self.dataset)

    def cell(
        self,
        variant: Variant,
        *,
        track: Track = "mixing",
        source: str | None = None,
        seed: int = 0,
        epochs: int | None = None,
    ) -> Cell:
        """Make the cell of a variant at this scale.

        Parameters
        ----------
        source
            Name or folder of the data set; None for the scale's.
        epochs
            Number of epochs; None for the recipe's.

        Raises
        ------
        ExperimentError
            If the scale has no such model, or `epochs` < 1.
        """
        model = self.models.get(variant.model)
        if model is None:
            raise ExperimentError(
                f"scale {self.name} has no model {variant.model!r}; "
                f"available: {', '.join(self.models)}"
            )
        options = dict(model.options)
        method = BY_NAME.get(variant.method)  # None for whole models
        if method is not None and method.positions is not None:
            options["positions"] = method.positions  # before a shuffle, they would undo it
        if variant.cut_at is not None:
            options["cut_at"] = variant.cut_at
        if variant.embedding != "patch":
            options["embedding"] = variant.embedding
            options.pop("pretrained", None)  # timm has weights for its own embedding only
        recipe = self.recipes[track]
        method_options = dict(variant.options)
        if variant.method == "SpectralShuffleSL":
            # Older cells without it have pixels.
            method_options.setdefault("spectrum", "embedding")
        if variant.method == "MixGuard":
            # Older cells without it have rotated secrets.
            method_options.setdefault("sampler", "skewed")
        if variant.method == "SpectralShuffleSL" and recipe.head_lr is not None:
            # Spectra need twice the learning rates (Patch Shuffling, section V-A).
            recipe = replace(recipe, lr=2 * recipe.lr, head_lr=2 * recipe.head_lr)
        if method is None:  # a whole model has no server updates; "sum" is the default
            recipe = replace(recipe, server_update="sum")
        elif variant.server_update is not None:
            recipe = replace(recipe, server_update=variant.server_update)
        if variant.public_corpora is not None:
            recipe = replace(recipe, public_corpora=variant.public_corpora)
        return Cell(
            method=variant.method,
            options=as_options(method_options),
            model=model.name,
            model_options=as_options(options),
            clients=variant.clients,
            partition=variant.partition,
            dataset=dataset_name(source or self.source(track)),
            seed=seed,
            recipe=recipe if epochs is None else recipe.with_epochs(epochs),
            defence=variant.defence,
        )


ENCODER = "MiniLM-L6"
"""A pretrained encoder of six layers: one in the head, four in the trunk, one in the tail."""

STORIES = "stories15m"
"""A pretrained decoder of six layers, cut likewise; `splitmix model fetch` downloads it."""


DECODER = "decoder"
"""A decoder for answers, larger at larger scales."""

TINY = "tiny"
"""A decoder made when a cell is run, with random weights and its own tokenizer."""


COMPOSED = "fashion-mnist-multi"
"""The composed multi-label set of images, by its name for `load_images`."""


FACE = 178
"""Shorter side of CelebA's images in pixels; they are read at this size, as squares."""


def _image_recipes(mixing: Recipe, shuffling: Recipe) -> dict[Track, Recipe]:
    faces = shuffling.resize is not None  # at scale paper; the others have composed images
    several = replace(shuffling, image_size=FACE) if faces else shuffling
    return {"mixing": mixing, "shuffling": shuffling, "multi-label": several}


def _models(vit: Model, backbone: Model, decoder: Model, *, vgg: str = "vgg16") -> dict[str, Model]:
    return {
        "ViT-Tiny": vit,
        # timm has no T2T-ViT; an edge can have its embedding, see `Variant.embedding`.
        "T2T-ViT-24": backbone,
        "PiT-Tiny": _model("pit_ti_224", patch_size=4, depth=None),
        "VGG-16": _model(vgg, cell=2),
        ENCODER: _model("all-MiniLM-L6-v2", head=1, tail=1),
        DECODER: decoder,
        STORIES: decoder if decoder.name == TINY else _model("stories15m", head=1, tail=1),
    }


SMOKE = Scale(
    "smoke",
    "does it run: 20 shipped images a client, 2 epochs, one transformer block",
    "fashion-mnist-small",
    {
        **_image_recipes(
            Recipe(
                scale="smoke",
                samples=20,
                batch_size=10,
                epochs=2,
                warmup_epochs=1.0,
                test_images=40,
                server_update="sequential",
            ),
            Recipe(
                scale="smoke",
                samples=60,
                batch_size=10,
                epochs=2,
                warmup_epochs=1.0,
                test_images=40,
            ),
        ),
        **TEXT_RECIPES["smoke"],
    },
    _models(
        _model("vit_tiny_patch16_224", patch_size=8, depth=1),
        _model("vit_tiny_patch16_224", patch_size=8, depth=2),
        _model(TINY, head=1, tail=1),
        vgg="vgg11",
    ),
    {"multi-label": COMPOSED, **dict.fromkeys(TEXT_RECIPES["smoke"], "generated")},
)

CPU = Scale(
    "cpu",
    "100 Fashion-MNIST images a client, 16 patches, 60 epochs: where PSL overfits",
    "fashion-mnist-small",
    {
        **_image_recipes(
            Recipe(
                scale="cpu",
                samples=100,
                batch_size=25,
                epochs=60,
                warmup_epochs=5.0,
                test_images=2000,
                evaluations=2,
                checkpoints=4,
                server_update="sequential",
            ),
            Recipe(
                scale="cpu",
                samples=1000,
                batch_size=50,
                epochs=60,
                warmup_epochs=5.0,
                test_images=2000,
                evaluations=4,
                checkpoints=8,
            ),
        ),
        **TEXT_RECIPES["cpu"],
    },
    _models(
        _model("vit_tiny_patch16_224", patch_size=8, depth=6),
        _model("vit_tiny_patch16_224", patch_size=8, depth=6),
        _model("stories15m", head=1, tail=1),
    ),
    {"multi-label": COMPOSED, **{corpus: corpus for corpus in TEXT_RECIPES["cpu"]}},
)

PAPER = Scale(
    "paper",
    "the papers' recipe: 5,000 images a client, 64 patches, 600 epochs, on one GPU",
    "uoft-cs/cifar10",
    {
        **_image_recipes(
            Recipe(
                scale="paper",
                samples=5000,
                batch_size=128,
                epochs=600,
                warmup_epochs=5.0,
                evaluations=30,
                checkpoints=12,
                server_update="sequential",
            ),
            Recipe(
                scale="paper",
                samples=0,
                batch_size=50,
                epochs=60,
                warmup_epochs=0.0,
                evaluations=6,
                checkpoints=6,
                optimizer="sgd",
                lr=5e-4,
                weight_decay=5e-4,
                final_lr=2e-6,
                head_lr=0.05,
                resize=224,
            ),
        ),
        **TEXT_RECIPES["paper"],
    },
    _models(
        _model("vit_tiny_patch16_224", patch_size=4, depth=6),
        _model("deit_small_patch16_224", patch_size=16, depth=None, pretrained=True),
        _model("qwen2.5-coder-0.5b", head=3, tail=3),
    ),
    {"multi-label": "flwrlabs/celeba", **{corpus: corpus for corpus in TEXT_RECIPES["paper"]}},
)

SCALES: dict[str, Scale] = {scale.name: scale for scale in (SMOKE, CPU, PAPER)}
"""All scales by name, smallest first."""


def scale_named(name: str) -> Scale:
    """Return the scale with a name.

    Raises
    ------
    ExperimentError
        If there is none.
    """
    if name not in SCALES:
        raise ExperimentError(f"unknown scale {name!r}; available: {', '.join(SCALES)}")
    return SCALES[name]
