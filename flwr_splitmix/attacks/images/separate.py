"""All images of one mixture: a transformer with one output per member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.alignment import MOST_MEMBERS, separation_loss
from flwr_splitmix.attacks.images.example import Example
from flwr_splitmix.attacks.images.trained import TrainedAttack
from flwr_splitmix.attacks.images.transformer import SIZES, TransformerDecoder
from flwr_splitmix.attacks.knowledge import Knowledge


class Separate(TrainedAttack):
    """Reconstructs the images of all members of a mixture, in no order.

    The loss is that of the best assignment of outputs to members. If masks are known, there is
    nothing to separate, and `decoder-transformer` is the stronger attack.
    """

    name: ClassVar[str] = "separate"
    epochs: ClassVar[Mapping[str, int]] = {"smoke": 2, "cpu": 16, "paper": 100}
    settings: ClassVar[tuple[Mapping[str, Any], ...]] = ({"lr": 1e-3}, {"lr": 2e-3})
    source: ClassVar[str] = "ours"

    def network(self, knowledge: Knowledge, width: int) -> nn.Module:
        """Make the transformer."""
        geometry = knowledge.geometry
        return TransformerDecoder(
            width, geometry.patches, geometry.prefix, geometry.grid, knowledge.image_shape,
            images=knowledge.k, **SIZES[self.budget.scale],
        )  # fmt: skip

    def loss(self, made: Tensor, example: Example) -> Tensor:
        """Return the mean squared error under the best assignment."""
        return separation_loss(made, example.images)

    def check(self, view: View) -> None:
        """Raise NotApplicable without mixtures of unknown masks, or if too many are mixed."""
        require_mixtures(view)
        super().check(view)


def require_mixtures(view: View) -> None:
    """Raise NotApplicable unless the view holds mixtures whose patches have unknown owners."""
    k = view.knowledge.k
    if k < 2 or all(r.client is not None or r.owners is not None for r in view.releases):
        raise NotApplicable(
            f"the view of the adversary {view.adversary!r} on {view.knowledge.method} has no "
            "mixture of several clients' images whose parts it does not know anyway, and only such "
            "are taken apart"
        )
    if k > MOST_MEMBERS:
        raise NotApplicable(f"mixtures of {k} are not taken apart; at most {MOST_MEMBERS} are")
