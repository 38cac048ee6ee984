"""The sizes of the matrix of texts: smoke (a model made on the fly), cpu, paper (a GPU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flwr_splitmix.experiments.privacy.kinds import AnySize
from flwr_splitmix.experiments.scales import TINY

if TYPE_CHECKING:
    from flwr_splitmix.data.texts.rows import TextTask  # loads torch

SUMS = "sums"
"""The data set that reads nothing: made-up sums, all of whose words are learned."""


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How long a victim's client learns.

    Parameters
    ----------
    samples
        Texts of the client; 0 is all.
    epochs
        How often it takes all of them; a round is one.
    lr
        AdamW's highest rate, which rises in the first tenth and falls by a cosine.
    """

    samples: int
    epochs: int
    lr: float


@dataclass(frozen=True, kw_only=True)
class TextSize(AnySize):
    """How a victim's client is trained, and how many texts attacks and scores have.

    Texts of training, of testing, the client's public texts and the attacker's are disjoint.

    Parameters
    ----------
    model
        A decoder: a name of `splitmix model fetch`, a folder, or `TINY`.
    head, tail
        Layers of both; the others are the trunk's.
    max_length
        Tokens; longer texts are cut.
    batch
        Texts of a step.
    fitting
        How long the one client learns.
    fitting_classes
        The same where texts have classes, which need more of them; None is `fitting`.
    test
        Texts that say the utility; 0 is all.
    supports, public
        Public texts: the client's own (supports, calibration, a denoiser's), and the attacker's;
        of made-up ones at most 100 and 300.
    trained, held_out
        Victims: texts that were trained on, and texts that were not.
    seconds
        Processor time that fitting and running one attack may take; None is no limit. An attack
        that comes to it guesses at fewer texts.
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
        """Return how long a client learns a task."""
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
            trained=2,
            held_out=2,
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
