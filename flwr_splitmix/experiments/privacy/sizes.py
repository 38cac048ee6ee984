"""The sizes of the matrix: smoke (seconds a row), cpu (an evening on two cores), paper (a GPU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flwr_splitmix.experiments.privacy.kinds import AnySize


@dataclass(frozen=True, kw_only=True)
class Size(AnySize):
    """How victims are trained, and how many images attacks and scores have.

    The images of training, of testing, of victims held out and of the attacker are disjoint.

    Parameters
    ----------
    patch, depth
        Pixels of a patch's side, and transformer blocks of the ViT-Tiny; a method with a frozen
        edge has one block more, which is the edge's.
    clients, samples, batch
        n, the images of each, and the images of a step.
    epochs
        Of training; a round is one.
    recorded
        Epochs at the end that are attacked.
    test, held_out, public
        Images that say the accuracy, victims that nothing was trained on, and the attacker's.
    repeats
        Releases of an image that an attacker collects.
    trial_steps
        Most steps of an attack's loop while its settings are compared; None is all.
    seconds
        Processor time that one attack may take; None is no limit. An attack that comes to it says
        less, and the result depends on the processor.
    """

    matrix: ClassVar[str] = "images"

    patch: int
    depth: int
    clients: int
    samples: int
    batch: int
    epochs: int
    recorded: int
    test: int
    held_out: int
    public: int
    repeats: int
    trial_steps: int | None = None
    seconds: float | None = None
    image_size: int = 32


SIZES: dict[str, Size] = {
    size.name: size
    for size in (
        Size(
            name="smoke",
            title="does it run: 16 shipped images a client, 2 epochs, 16 patches, one block",
            source="fashion-mnist-small",
            patch=8,
            depth=1,
            clients=2,
            samples=16,
            batch=8,
            epochs=2,
            recorded=1,
            test=40,
            held_out=16,
            public=48,
            repeats=3,
            trial_steps=4,
        ),
        Size(
            name="cpu",
            title="4 clients with 150 Fashion-MNIST images each, 64 patches of 192, 20 epochs",
            source="fashion-mnist-small",
            patch=4,
            depth=1,
            clients=4,
            samples=150,
            batch=10,
            epochs=20,
            recorded=1,
            test=500,
            held_out=200,
            public=4000,
            repeats=8,
            trial_steps=30,
            seconds=150.0,
        ),
        Size(
            name="paper",
            title="10 clients with 2,000 CIFAR-10 images each, 64 patches of 192, 100 epochs",
            source="uoft-cs/cifar10",
            patch=4,
            depth=6,
            clients=10,
            samples=1500,
            batch=100,
            epochs=100,
            recorded=2,
            test=5000,
            held_out=1000,
            public=20_000,
            repeats=30,
            trial_steps=500,
        ),
    )
}
"""All sizes by name, smallest first."""
