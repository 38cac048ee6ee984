"""The base class of attacks that train a network on releases of public images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.images.networks.example import Example, public_examples
from flwr_splitmix.attacks.images.networks.reading import guess_images
from flwr_splitmix.attacks.images.networks.training import BATCH, Reader, image_loss, train_reader
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures


class TrainedAttack(Attack):
    """Trains a network with AdamW on a one-cycle schedule; a subclass defines which and how long.

    Attributes
    ----------
    epochs
        By scale; in each epoch as many rows are drawn as there are public images.
    """

    goal: ClassVar[Goal] = "images"
    needs: ClassVar[frozenset[str]] = frozenset({"smashed data", "lower", "public data"})
    epochs: ClassVar[Mapping[str, int]] = {"smoke": 2, "cpu": 6, "paper": 40}
    rate: ClassVar[float] = 1e-3

    @abstractmethod
    def network(self, knowledge: Knowledge, width: int) -> nn.Module:
        """Return the network, which takes (b, prefix + N, width)."""

    def loss(self, prediction: Tensor, example: Example) -> Tensor:
        """Return the training loss; by default the mean squared error of images."""
        return image_loss(prediction, example)

    def learn(self, view: View, public: Pictures | None) -> None:
        """Train on public images; see `Attack.learn`."""
        assert public is not None, "`fit` refuses without public data"
        pictures = public.fitted(view.knowledge.image_shape)
        self._reader = train_reader(
            lambda width: self.network(view.knowledge, width),
            public_examples(view, pictures, BATCH, self.seed),
            self.loss,
            steps=self.epochs[self.budget.scale] * max(1, len(pictures) // BATCH),
            lr=self.setting.get("lr", self.rate),
            seed=self.seed,
            budget=self.budget,
            loop=self.name,
        )

    @property
    def reader(self) -> Reader:
        """The trained network.

        Raises
        ------
        RuntimeError
            If `fit` has not been called.
        """
        if not hasattr(self, "_reader"):
            raise RuntimeError(f"the attack {self.name!r} has not been fitted; call fit first")
        return self._reader

    def run(self, view: View) -> Guess:
        """Reconstruct the image behind every row."""
        device, reader = self.budget.device, self.reader
        return guess_images(view, lambda q: reader.read(q.tokens, q.mask, device), device)
