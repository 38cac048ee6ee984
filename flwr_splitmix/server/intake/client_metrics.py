"""The means of clients' metrics, with warnings about metrics that have no column of their own."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message

from flwr_splitmix.observers.metrics import LIST_RULE, LOSS, columns_of
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.intake.checks import NAME, NAME_RULE
from flwr_splitmix.server.intake.reply_metrics import client_means, metrics_of
from flwr_splitmix.words import listed, one_line

log = logging.getLogger("flwr.splitmix")


class ClientMetrics:
    """Averages a run's metrics of clients; warns once of names, lists and columns that collide."""

    def __init__(self) -> None:
        self._once = SeenKeys()

    def means(self, replies: Sequence[Message]) -> dict[str, float]:
        """Return `client_means`; log, once per run, which metrics have no column of their own."""
        means = client_means(replies)
        metrics = [metrics_of(reply) for reply in replies]
        misnamed = _of_most(metrics, lambda name, value: not NAME.fullmatch(name))
        if misnamed and self._once.add("names"):
            log.warning(
                "left out of the run's metrics: %s; the name of a client's metric %s",
                listed((repr(one_line(name)[:60]) for name in misnamed), most=5),
                NAME_RULE,
            )
        lists = _of_most(
            metrics, lambda name, value: isinstance(value, list) and bool(NAME.fullmatch(name))
        )
        if lists and self._once.add("lists"):
            log.warning(
                "left out of the run's rows: %s; %s", listed(map(repr, lists), most=5), LIST_RULE
            )
        self._warn_of_shared_columns(means)
        return means

    def _warn_of_shared_columns(self, names: Iterable[str]) -> None:
        first_of_column: dict[str, str] = {}
        columns = columns_of(name for name in names if name != LOSS)
        for name, column in sorted(columns.items()):
            first = first_of_column.setdefault(column, name)
            if first != name and self._once.add("shared"):
                log.warning(
                    "the clients' metrics %r and %r share the column %s, which has the latter; "
                    "give one another name",
                    first,
                    name,
                    column,
                )


def _of_most(
    metrics: Sequence[Mapping[str, Any]], applies: Callable[[str, Any], bool]
) -> list[str]:
    """Return the names, sorted, for which a rule applies to more than half of the clients."""
    count = Counter(
        name for reported in metrics for name, value in reported.items() if applies(name, value)
    )
    return sorted(name for name, n in count.items() if 2 * n > len(metrics))
