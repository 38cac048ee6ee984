"""A warning about clients whose frozen weights differ, where the others are averaged."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right

from flwr_splitmix.clients.ushape.frozen_weights import MAX_SKETCH_DIFFERENCE
from flwr_splitmix.description import UShapeDescription
from flwr_splitmix.links import Clients
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.naming import name_clients
from flwr_splitmix.words import counted, have

log = logging.getLogger("flwr.splitmix")


class FrozenWeights:
    """Names, once per run, each client whose frozen weights are not those of most clients."""

    def __init__(self) -> None:
        self._numbers: dict[int, float] = {}
        self._once = SeenKeys()

    def compare(self, clients: Clients) -> None:
        """Log which of a round's clients differ from the largest group that is alike.

        Clients of earlier rounds count, too. Of several groups of one size, that of the smallest
        client index is the right one.
        """
        reported = {
            c: description.frozen_weights
            for c, description in clients.described(UShapeDescription).items()
        }
        numbers = {client: number for client, number in reported.items() if number is not None}
        if all(self._numbers.get(client) == number for client, number in numbers.items()):
            return
        self._numbers |= numbers
        ordered = sorted(self._numbers.values())

        def alike(client: int) -> int:
            number = self._numbers[client]
            return bisect_right(ordered, number + MAX_SKETCH_DIFFERENCE) - bisect_left(
                ordered, number - MAX_SKETCH_DIFFERENCE
            )

        usual = max(sorted(self._numbers), key=alike)
        unlike = self._once.add_all(
            client
            for client, number in sorted(self._numbers.items())
            if abs(number - self._numbers[usual]) > MAX_SKETCH_DIFFERENCE
        )
        if not unlike:
            return
        others = alike(usual) - 1
        log.warning(
            "%s %s other frozen weights in head or tail than client %d%s: frozen weights are not "
            "sent, so what is averaged was trained beside different ones; build the parts of all "
            "clients from one seed (torch.manual_seed, or seed=) or from the same pretrained "
            "weights, unless each is meant to have its own",
            name_clients(unlike),
            have(len(unlike)),
            usual,
            f" and {counted(others, 'other')}" if others else "",
        )
