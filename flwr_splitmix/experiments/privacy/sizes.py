"""Sizes of the matrix: smoke (seconds per row), cpu (an evening on two cores), paper (a GPU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flwr_splitmix.experiments.privacy.kinds import AnySize


@dataclass(frozen=True, kw_only=True)
class Size(AnySize):
    """Size of the victims' training, and numbers of images for attacks and scores.

    The images for training, of held-out victims and of the attacker are disjoint; accuracy is
    measured on test images, of which held-out victims, and images of the attacker, may be some.

    Parameters
    ----------
    patch, depth
        Side of a patch in pixels, and number of transformer blocks of the ViT-Tiny; a method with
        a frozen edge has one more block, which is the edge's.
    clients, samples, batch
        Number of clients n, number of images of each, and number of its images per step.
    epochs
        Epochs of training; a round is one epoch.
    recorded
        Number of epochs at the end that are recorded and attacked.
    test, held_out, public
        Numbers of images for accuracy, of held-out victims, and of the attacker's images.
    repeats
        Number of releases of an image that an attacker collects.
    trial_steps
        Maximum number of steps of an attack's loop in comparing its settings; None for no limit.
    seconds
        Limit of one attack's processor time; None for no limit. An attack that reaches it is
        weaker, and its result depends on the processor.
    image_size
        Side of the images in pixels.
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
            title="10 clients with 1,500 CIFAR-10 images each, 64 patches of 192, 100 epochs",
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
