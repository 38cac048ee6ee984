"""Patch Shuffling: frozen edges shuffle tokens; the server has the labels, returns no gradient."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from torch import Tensor, nn

from flwr_splitmix.description import SplitDescription
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.labels import wrong_labels
from flwr_splitmix.links import Clients
from flwr_splitmix.mixers import FrozenEdge
from flwr_splitmix.server.options import SplitOptions
from flwr_splitmix.strategies.split import SplitStrategy
from flwr_splitmix.values import check_choice


class _ShuffledEdgeSL(SplitStrategy):
    """Trains the upper segment on tokens that frozen edges shuffle; a subclass sets the shuffle.

    Its arguments are those of `PatchShuffleSL` and `BatchShuffleSL`.

    Source: Patch Shuffling, section IV.
    """

    needs_labels = True
    method: str

    def __init__(
        self,
        upper: nn.Module,
        *,
        labels: Sequence[Tensor] | None = None,
        kappa: float,
        **options: Unpack[SplitOptions],
    ) -> None:
        name = type(self).__name__
        if labels is None:
            raise ValueError(
                f"{name} needs the clients' labels at the server: labels=[...], by client index "
                "an int64 tensor (examples,) for each"
            )
        if options.get("aggregator") is not None:
            raise ValueError(f"{name} has frozen edges: there is nothing to aggregate")
        needed: dict[str, Any] = {"method": self.method, "kappa": kappa}
        described = getattr(upper, "edge", None)
        made_for = dict(described) if isinstance(described, Mapping) else needed
        if {key: made_for.get(key) for key in needed} != needed:
            raise ValueError(
                f"{name} needs an upper segment made for {needed}, this one is for {made_for}"
            )
        self.edge = made_for  # any embedding: clients need the one that the segment was made for
        mixer = FrozenEdge(needs_whole_batch=kappa < 1)
        super().__init__(upper, mixer=mixer, labels=labels, **options)
        for client, client_labels in enumerate(labels):
            if wrong := wrong_labels(
                client_labels, self.upper.num_classes, multi_label=self.upper.multi_label
            ):
                raise ValueError(f"labels of client {client} {wrong}")

    def agree(self, clients: Clients) -> int:
        """Exclude clients without the required edges or shapes; return the round's steps."""
        self._check_edges(clients)
        return super().agree(clients)

    def evaluate_round(self, clients: Clients) -> EvaluationResult | None:
        """Score the clients whose edges are as required."""
        self._check_edges(clients)
        return super().evaluate_round(clients)

    def _check_edges(self, clients: Clients) -> None:
        assert self.labels is not None
        expected = json.dumps(self.edge, sort_keys=True)
        for client, description in clients.described(SplitDescription).items():
            segment = description.segment
            if segment.edge != expected:
                clients.fail(
                    client,
                    f"its lower segment does not shuffle as {type(self).__name__} asks: its edge "
                    f"is {segment.edge}, not {expected}; split_shuffled_edge makes such "
                    "segments, and one of your own must name its shuffle in its attribute edge",
                )
            elif segment.trainable:
                clients.fail(
                    client,
                    f"its lower segment has trainable parameters; {type(self).__name__} freezes "
                    "the edge and sends no gradient back",
                )
            elif client >= len(self.labels):
                clients.fail(client, f"the server has labels of {len(self.labels)} clients only")
            elif description.num_examples != len(self.labels[client]):
                clients.fail(
                    client,
                    f"has {description.num_examples} examples, the server has "
                    f"{len(self.labels[client])} labels of it",
                )


class PatchShuffleSL(_ShuffledEdgeSL):
    """PS: each image's tokens are permuted at the edge, behind a frozen embedding.

    Parameters
    ----------
    upper
        The upper segment of `split_shuffled_edge`.
    labels
        Each client's labels, by client index: int64 (examples,), or multi-label
        (examples, L). They must be given, as clients send ids instead.
    **options
        See `SplitStrategy`.

    Raises
    ------
    ValueError
        If labels are missing, an aggregator is given, or the upper segment was made for another
        shuffle.

    Source: Patch Shuffling, section IV-B.
    """

    method = "patch"

    def __init__(
        self,
        upper: nn.Module,
        *,
        labels: Sequence[Tensor] | None = None,
        **options: Unpack[SplitOptions],
    ) -> None:
        super().__init__(upper, labels=labels, kappa=1.0, **options)


class BatchShuffleSL(_ShuffledEdgeSL):
    """BS: part of every image's tokens is redistributed among the images of the batch.

    Parameters
    ----------
    upper, labels
        As for `PatchShuffleSL`.
    kappa
        Fraction of its own tokens that an image keeps, 0 < kappa <= 1; 1 is PS.
    **options
        See `SplitStrategy`.

    Source: Patch Shuffling, section IV-C.
    """

    method = "batch"

    def __init__(
        self,
        upper: nn.Module,
        *,
        labels: Sequence[Tensor] | None = None,
        kappa: float = 0.4,
        **options: Unpack[SplitOptions],
    ) -> None:
        if not 0 < kappa <= 1:
            raise ValueError(f"kappa is {kappa}; it must be above 0, at most 1")
        super().__init__(upper, labels=labels, kappa=kappa, **options)


class SpectralShuffleSL(PatchShuffleSL):
    """PS+: patches of a spectrum are permuted; the server embeds them.

    Parameters
    ----------
    upper, labels
        As for `PatchShuffleSL`.
    spectrum
        The input of the transform: "embedding", the frozen patch embedding f(x) reassembled into a
        map, as in the paper's text; "pixels", the image itself, as its Figure 4 shows.
    **options
        See `SplitStrategy`.

    Source: Patch Shuffling, section IV-D and Algorithm 1.
    """

    method = "spectral"

    def __init__(
        self,
        upper: nn.Module,
        *,
        labels: Sequence[Tensor] | None = None,
        spectrum: Literal["embedding", "pixels"] = "embedding",
        **options: Unpack[SplitOptions],
    ) -> None:
        check_choice("spectrum", spectrum, ("embedding", "pixels"))
        if spectrum == "pixels":
            self.method = "spectral-pixels"
        super().__init__(upper, labels=labels, **options)
