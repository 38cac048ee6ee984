"""Warnings about what a mixer cannot protect, and about what its plans leave out."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Collection, Mapping, Sequence

from flwr_splitmix.description import SplitDescription
from flwr_splitmix.finite import largest_magnitude
from flwr_splitmix.links import Clients
from flwr_splitmix.mixers import (
    GroupMixer,
    InputLevel,
    Mixer,
    Plan,
    Share,
    SmashedShape,
    Upload,
)
from flwr_splitmix.mixers.wrapper import innermost
from flwr_splitmix.server.naming import name_clients
from flwr_splitmix.server.warnings.clients import OncePerClient
from flwr_splitmix.server.warnings.tally import RoundTally
from flwr_splitmix.words import counted, verb

log = logging.getLogger("flwr.splitmix")


UNUSUAL_SCALE = 10
"""A warning names clients whose smashed data differ more, as a factor, from the median client's."""


class MixerWarnings:
    """Logs each warning about what a mixer does with a round's clients once per run.

    Parameters
    ----------
    mixer
        The run's mixer.
    min_nodes
        The fewest clients of a round.
    noisy
        Whether noise is added to uploads.
    """

    def __init__(self, mixer: Mixer, min_nodes: int = 1, *, noisy: bool = False) -> None:
        self._mixer, self._min_nodes = mixer, min_nodes
        self._noisy = noisy
        self._once = OncePerClient()

    def on_clients(self, clients: Clients, shape: SmashedShape) -> None:
        """Warn about what the mixer cannot protect."""
        descriptions = clients.described(SplitDescription)
        self._on_shape(clients.nodes, shape)
        self._on_positions(
            [
                c
                for c, description in descriptions.items()
                if description.segment.positions == "lower"
            ]
        )

    def _on_shape(self, clients: Sequence[int], shape: SmashedShape) -> None:
        """Warn about smashed data of which the mixer hides nothing, or not everything."""
        lost = self._mixer.without_effect(shape.patches)
        if lost and self._once.add("one patch"):
            log.warning(
                "each sample has only one patch, so %s %s. %s",
                self._mixer,
                lost,
                "Give the mixer a grid of cells, grid=(rows, columns)"
                if isinstance(self._mixer, InputLevel)
                else "Cut the model where there are several, or divide the width into some, such "
                "as with .unflatten(1, (8, -1)) for features (batch, width)",
            )
        if shape.prefix and self._mixer.min_members > 1 and not self._mixer.raw_inputs_cross:
            self._once.warn(
                clients,
                "send",
                f"{counted(shape.prefix, 'prefix token')} of every image, which have "
                "attended to all of it if the model is cut at a block: they are summed with the "
                "others', not masked",
            )

    def _on_positions(self, clients: Sequence[int]) -> None:
        """Warn if the mixer moves patches that may reveal where they were."""
        if self._mixer.positions == "upper":
            self._once.warn(
                clients,
                "have",
                "a lower segment that may add position embeddings or know the patches' slots (its "
                f"geometry says so, or it has none), and {self._mixer} moves patches, which may "
                "then reveal where they were. Cut the model before its position embeddings; if "
                "nothing in it knows the slots, declare it by geometry = Geometry(patches, width, "
                "positions='none')",
            )

    def on_few(self, server_round: int, nodes: int) -> None:
        """Log, once per run, that a round of `nodes` clients has fewer than the mixer asks for."""
        if "few" in self._once:
            return
        try:
            self._mixer.check_clients(nodes)
        except ValueError as error:
            self._once.add("few")
            log.warning(
                "round %d continues in smaller mixing groups than asked for: %s. Later rounds "
                "may, too, down to %s",
                server_round,
                error,
                counted(self._min_nodes, "client"),
            )

    def on_leftover(self, nodes: int) -> None:
        """Log, once per run and before anything is sent, that one client at a time is not mixed.

        Parameters
        ----------
        nodes
            Clients that take part in the round.
        """
        inner = innermost(self._mixer)
        if not isinstance(inner, GroupMixer) or inner.asked(nodes) < nodes:
            return
        if nodes < inner.k or not inner.leaves_one(nodes) or not self._once.add("leftover"):
            return
        log.warning(
            "k is %d for %d clients: in each step one is left over and sends all its smashed "
            "data%s; with leftover='skip' it sends nothing",
            inner.k,
            nodes,
            ", which only noise protects"
            if self._noisy
            else " with hard labels, which nothing protects",
        )

    def on_uploads(self, uploads: Mapping[int, object], plan: Plan) -> None:
        """Warn about clients whose smashed data are far larger or smaller than the others'.

        Waits for the uploads' device.
        """
        largest = {
            client: _largest(upload, plan.shares(client))
            for client, upload in uploads.items()
            if isinstance(upload, Upload)
        }
        scales = {client: value for client, value in largest.items() if value > 0}
        if not scales:
            return
        usual = statistics.median_low(scales.values())
        for word, factors in (
            ("larger", {client: value / usual for client, value in scales.items()}),
            ("smaller", {client: usual / value for client, value in scales.items()}),
        ):
            self._once.warn(
                sorted(client for client, factor in factors.items() if factor > UNUSUAL_SCALE),
                "send",
                f"smashed data more than {UNUSUAL_SCALE} times {word} than the median client's: "
                "are the inputs scaled like the others'?",
            )

    def on_plans(self, server_round: int, tally: RoundTally, alive: Collection[int]) -> None:
        """Warn, at the end of a round, about what its plans did not mix, left out or lacked.

        Parameters
        ----------
        alive
            The clients that are left.
        """
        unmixed = tally.unmixed
        if unmixed and not ("leftover" in self._once and unmixed.total() <= tally.steps):
            log.warning(
                "round %d: %s left over when groups were formed, in %s in all, and sent all "
                "smashed data%s",
                server_round,
                f"{name_clients(sorted(unmixed))} {verb(len(unmixed), 'were')}",
                counted(unmixed.total(), "upload"),
                ": only the noise protected them"
                if self._noisy
                else " with hard labels: nothing protected them",
            )
        inner = innermost(self._mixer)
        skips = isinstance(inner, GroupMixer) and inner.leftover == "skip"
        self._once.warn(
            sorted(tally.left_out.intersection(alive)),
            "were",
            "left over in every step of a round (leftover='skip'), so nothing was learned from the "
            "data there: regroup='step', or more steps in a round, let others be left over, too"
            if skips
            else f"in none of the plans that {self._mixer} made for a round, so nothing was "
            "learned from the data there; `plan` must give every member a share, at least in some "
            "steps of a round",
        )
        if tally.teachable and not tally.taught and self._once.add("untaught"):
            log.warning(
                "round %d: no client got a gradient, so no lower segment learned; if no other "
                "warning explains it, `%s.split` returned no gradients (for shares that are not "
                "meant to learn, set `learns=False`)",
                server_round,
                type(innermost(self._mixer)).__name__,
            )
        if tally.steps and tally.empty == tally.steps:
            log.warning(
                "round %d: nothing was learned, as no step had a patch of a client in its mixtures",
                server_round,
            )


def _largest(upload: Upload, shares: Sequence[Share | None]) -> float:
    """Return the largest absolute value of a client's smashed data; 0 if it is unknown."""
    values = [0.0]
    for tensor, share in zip(upload.smashed, shares, strict=True):
        # The effect of other shares on smashed data is not known here.
        if tensor is not None and tensor.numel() and share is not None and share.family is not None:
            scale = share.lam if share.family == "mixup" else 1.0
            values.append(float(largest_magnitude(tensor)) / scale if scale else 0.0)
    return max(values)
