"""The intake of a round's replies, checked before they are averaged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from flwr.app import ArrayRecord, Message

from flwr_splitmix.links import Clients
from flwr_splitmix.links.ticket import to_numpy
from flwr_splitmix.server.intake.checks import NAME


def keep_sound_segments(clients: Clients, like: ArrayRecord) -> None:
    """Leave out the replies whose lower segment cannot be averaged, and fail their clients.

    Parameters
    ----------
    like
        The lower segment that the round began with: names and shapes must be the same, and every
        number finite. Metrics must be alike, and the number of examples what the client described.
    """
    expected = {name: array.shape for name, array in like.items()}
    keys = Counter(frozenset(_metrics(reply)) for reply in clients.replies).most_common(1)
    sound = []
    for client, reply in zip(clients.alive, clients.replies, strict=True):
        records = list(reply.content.array_records.values())
        shapes = {name: a.shape for name, a in records[0].items()} if len(records) == 1 else None
        metrics = _metrics(reply)
        examples = clients.descriptions[client]["num-examples"]
        if shapes != expected:
            clients.fail(client, "returned another lower segment than it was given")
        elif not all(np.isfinite(array).all() for array in to_numpy(records[0]).values()):
            clients.fail(client, "returned a lower segment with NaN or infinite numbers")
        elif frozenset(metrics) != keys[0][0] or not np.isfinite(list(metrics.values())).all():
            clients.fail(client, "returned other metrics than the other clients, or NaN")
        elif metrics.get("num-examples") != examples:
            clients.fail(
                client,
                f"has {metrics.get('num-examples')} examples now, and said {examples} before",
            )
        else:
            sound.append(reply)
    clients.replies = sound


def _metrics(reply: Message) -> dict[str, float]:
    """Return a reply's metrics if they are one record of numbers, else none."""
    records = list(reply.content.metric_records.values())
    if len(records) != 1:
        return {}
    return {name: value for name, value in records[0].items() if isinstance(value, (int, float))}


def client_means(replies: Sequence[Message]) -> dict[str, float]:
    """Return the means over examples of what all clients say of their round, besides its size.

    Of the U shape "train-loss" is among it: there the loss is computed at the client.
    """
    sizes = {"num-examples", "num-steps"}
    said = [m for m in map(_metrics, replies) if m.get("num-examples", 0) > 0]
    names = set.intersection(*map(set, said)) - sizes if said else set()
    names = {name for name in names if NAME.fullmatch(name)}
    examples = sum(m["num-examples"] for m in said)
    means = {
        name: sum(m[name] * m["num-examples"] for m in said) / examples for name in sorted(names)
    }
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}
