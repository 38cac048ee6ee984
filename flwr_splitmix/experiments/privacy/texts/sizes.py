"""The sizes of the matrix of texts: smoke (a model made on the fly), cpu, paper (a GPU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flwr_splitmix.experiments.privacy.kinds import AnySize
from flwr_splitmix.experiments.scales import TINY

if TYPE_CHECKING:
    from flwr_splitmix.data.texts.rows import TextTask  # loads torch

SUMS = "sums"
"""The data set that needs no files: made-up sums, all of whose words are learned."""


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """Length of a victim's training.

    Parameters
    ----------
    samples
        Number of the client's texts; 0 for all.
    epochs
        Number of passes over all of them, one per round.
    lr
        AdamW's peak learning rate, with warm-up in the first tenth, then cosine decay.
    """

    samples: int
    epochs: int
    lr: float


@dataclass(frozen=True, kw_only=True)
class TextSize(AnySize):
    """Size of a victim's training, and number of texts for attacks and scores.

    Training texts, test texts, the client's public texts and the attacker's are disjoint.

    Parameters
    ----------
    model
        A decoder: a name known to `splitmix model fetch`, a folder, or `TINY`.
    head, tail
        Number of layers of each; the trunk has the others.
    max_length
        Maximum number of tokens; longer texts are cut.
    batch
        Number of texts in a step.
    fitting
        Length of the one client's training.
    fitting_classes
        The same for classification, which needs more texts; None for `fitting`.
    test
        Number of texts on which utility is measured; 0 for all.
    supports, public
        Number of public texts: the client's own (for supports, calibration or a denoiser), and the
        attacker's; of made-up ones at most 100 and 300.
    trained, held_out
        Number of victims: texts that were trained on, and texts that were not.
    seconds
        Processor time for fitting and running one attack; None for no limit. An attack that
        reaches it guesses fewer texts.
    """

    matrix: ClassVar[str] = "texts"

    model: str
    head: int
    tail: int
    max_length: int
    batch: int
    fitting: Fitting
    fitting_classes: Fitting | None = None
    test: int
    supports: int
    public: int
    trained: int
    held_out: int
    seconds: float | None = None

    def fitting_of(self, task: TextTask) -> Fitting:
        """Return the length of a client's training for a task."""
        if task == "classification" and self.fitting_classes is not None:
            return self.fitting_classes
        return self.fitting


TEXT_SIZES: dict[str, TextSize] = {
    size.name: size
    for size in (
        TextSize(
            name="smoke",
            title="does it run: a tiny decoder with random weights, 16 made-up sums, one epoch",
            source=SUMS,
            model=TINY,
            head=1,
            tail=1,
            max_length=24,
            batch=4,
            fitting=Fitting(samples=16, epochs=1, lr=1e-3),
            test=16,
            supports=16,
            public=24,
            trained=3,
            held_out=3,
        ),
        TextSize(
            name="cpu",
            title="stories15m, one layer each in head and tail; all of CoLA, 2 epochs",
            source="cola",
            model="stories15m",
            head=1,
            tail=1,
            max_length=24,
            batch=16,
            fitting=Fitting(samples=1000, epochs=2, lr=5e-5),
            fitting_classes=Fitting(samples=0, epochs=2, lr=1e-4),
            test=0,
            supports=400,
            public=800,
            trained=4,
            held_out=4,
            seconds=150.0,
        ),
        TextSize(
            name="paper",
            title="qwen2.5-coder-0.5b on all of CoLA or GSM8K, 3 epochs, on one GPU",
            source="cola",
            model="qwen2.5-coder-0.5b",
            head=3,
            tail=3,
            max_length=256,
            batch=16,
            fitting=Fitting(samples=0, epochs=3, lr=2e-5),
            test=0,
            supports=4000,
            public=8000,
            trained=32,
            held_out=32,
        ),
    )
}
"""All sizes by name, smallest first."""
