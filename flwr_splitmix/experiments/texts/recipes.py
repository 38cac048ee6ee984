"""Training recipes of cells of texts, by scale and corpus."""

from __future__ import annotations

from typing import Literal

from flwr_splitmix.experiments.cells import Recipe, TextRecipe

TextTrack = Literal["cola", "sst2", "mrpc", "rte", "gsm8k", "webnlg", "samsum", "codealpaca"]
"""Keys of `corpora.CORPORA`."""

Track = Literal["mixing", "shuffling", "multi-label"] | TextTrack
"""Training recipe: of the CutMix papers, of Patch Shuffling (images of one class, or of several
labels each), or of a text corpus."""


def _recipe(
    scale: str,
    corpus: TextTrack,
    *,
    samples: int,
    epochs: int,
    test: int,
    length: int,
    public: int,
    words: int = 5,
    batch: int = 16,
    lr: float = 5e-5,
    new: int = 0,
) -> Recipe:
    return Recipe(
        scale=scale,
        samples=samples,
        batch_size=batch,
        epochs=epochs,
        warmup_epochs=0.1 * epochs,
        test_images=test,
        checkpoints=epochs,
        lr=lr,
        weight_decay=0.01,
        final_lr=lr / 100,
        texts=TextRecipe(corpus, length, public, public_words=words, new_tokens=new),
    )


def _smoke(corpus: TextTrack) -> Recipe:
    return _recipe("smoke", corpus, samples=16, epochs=2, test=16, length=16, public=8, batch=8)


def _smoke_answers(corpus: TextTrack) -> Recipe:
    return _recipe(
        "smoke", corpus,
        samples=16, epochs=2, test=8, length=96, public=8, words=40, batch=8, lr=1e-3, new=4,
    )  # fmt: skip


def _cpu_answers(corpus: TextTrack, new: int) -> Recipe:
    # With 40 secret tokens, texts are slightly shorter than stories15m's maximum of 256.
    return _recipe(
        "cpu", corpus,
        samples=400, epochs=2, test=32, length=208, public=200, words=40, new=new,
    )  # fmt: skip


def _paper_answers(corpus: TextTrack, new: int) -> Recipe:
    # 512 tokens with 40 secret ones (MixGuard, appendix A.2); 875 GB on GSM8K are 3 epochs, too.
    return _recipe(
        "paper", corpus,
        samples=0, epochs=3, test=0, length=472, public=8000, words=40, lr=2e-5, new=new,
    )  # fmt: skip


TEXT_RECIPES: dict[str, dict[Track, Recipe]] = {
    "smoke": {
        "cola": _smoke("cola"),
        "sst2": _smoke("sst2"),
        "mrpc": _smoke("mrpc"),
        "rte": _smoke("rte"),
        "gsm8k": _smoke_answers("gsm8k"),
        "webnlg": _smoke_answers("webnlg"),
        "samsum": _smoke_answers("samsum"),
        "codealpaca": _smoke_answers("codealpaca"),
    },
    "cpu": {
        "cola": _recipe("cpu", "cola", samples=4000, epochs=4, test=0, length=20, public=640),
        "sst2": _recipe("cpu", "sst2", samples=4000, epochs=4, test=0, length=32, public=640),
        "mrpc": _recipe(
            "cpu", "mrpc", samples=0, epochs=4, test=0, length=96, public=640, words=20
        ),
        "rte": _recipe("cpu", "rte", samples=0, epochs=4, test=0, length=128, public=640, words=20),
        "gsm8k": _cpu_answers("gsm8k", 128),
        "webnlg": _cpu_answers("webnlg", 48),
        "samsum": _cpu_answers("samsum", 32),
        "codealpaca": _cpu_answers("codealpaca", 64),
    },
    "paper": {
        # MixGuard's traffic, 1001 GB on CoLA at 40 MB a sample, is that of 3 epochs.
        "cola": _recipe("paper", "cola", samples=0, epochs=3, test=0, length=64, public=8000),
        "sst2": _recipe("paper", "sst2", samples=0, epochs=3, test=0, length=96, public=8000),
        "mrpc": _recipe(
            "paper", "mrpc", samples=0, epochs=3, test=0, length=160, public=8000, words=20
        ),
        "rte": _recipe(
            "paper", "rte", samples=0, epochs=3, test=0, length=320, public=8000, words=20
        ),
        "gsm8k": _paper_answers("gsm8k", 256),
        "webnlg": _paper_answers("webnlg", 96),
        "samsum": _paper_answers("samsum", 96),
        "codealpaca": _paper_answers("codealpaca", 256),
    },
}
"""Recipes by scale and corpus."""
