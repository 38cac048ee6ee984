"""Evaluation of the L shape: the server scores each client's pair of segments."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from flwr_splitmix.data.batches import TEST_BATCH
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.labels import Tally
from flwr_splitmix.links import Clients
from flwr_splitmix.server.evaluation.over_link import (
    Kind,
    batches_of_tests,
    sizes_of_tests,
    spread_of,
)
from flwr_splitmix.server.evaluation.time_limit import TimeLimit
from flwr_splitmix.server.intake.checks import UploadError
from flwr_splitmix.server.intake.descriptions import agree_on_shape
from flwr_splitmix.server.intake.split import LabelRules, read_test_upload
from flwr_splitmix.server.naming import evaluated_without
from flwr_splitmix.server.segments.upper import TrainedUpper

log = logging.getLogger("flwr.splitmix")

AT_ONCE = 2**27
"""Most numbers of smashed data held at once, 512 MiB of float32; more if a training step does.

Clients whose test batches together have more are asked one group after another.
"""


def evaluate_clients(clients: Clients, upper: TrainedUpper, kind: Kind) -> EvaluationResult | None:
    """Score each client's pair (its lower segment, the upper segment) over the link.

    "federated" uses each client's own test split and weights by its size; "benchmark" uses the
    common public test set, and reports mean and spread over clients (the papers' accuracy).
    Clients that send invalid data are left out. Return None if no client has such data.

    Raises
    ------
    LinkError
        If no client's smashed data fit the upper segment.
    """
    if not clients.alive:
        if clients.failures:
            log.warning("%s", evaluated_without(clients, any_left=False))
        return None
    shape, _ = agree_on_shape(clients, upper.geometry, upper.num_classes, upper.takes)
    rules = LabelRules(upper.num_classes, upper.multi_label)
    sizes = sizes_of_tests(clients, kind)
    tallies = dict.fromkeys(sizes, Tally())
    example = math.prod(shape.size[1:])
    most = max(AT_ONCE, len(clients.alive) * shape.batch * example)
    at_once = most // (example * min(TEST_BATCH, max(sizes.values(), default=1)))
    batch = dict.fromkeys(sizes, TEST_BATCH)
    for payloads in batches_of_tests(clients, TimeLimit(), kind, sizes, batch, max(1, at_once)):
        for client, payload in payloads.items():
            if sizes[client] < clients.descriptions[client].tests(kind):
                payload["shuffled"] = True  # a test set may be in the order of its classes
        # Replies are not kept in a variable: they would stay in memory while the next ones come in.
        for client, reply in clients.call("encode_test", payloads, phase="evaluate").items():
            size = payloads[client]["stop"] - payloads[client]["start"]
            try:
                smashed, labels = read_test_upload(
                    reply,
                    replace(shape, batch=size),
                    rules,
                    upper.input_dtype,
                )
            except UploadError as error:
                clients.fail(client, str(error))
                continue
            tallies[client] += upper.score(smashed, labels)
    evaluated = [c for c in sizes if c not in clients.failures]
    if clients.failures:
        log.warning("%s", evaluated_without(clients, any_left=bool(evaluated)))
    if not evaluated:
        return None
    whole = sum((tallies[c] for c in evaluated), Tally())
    return EvaluationResult(
        kind,
        whole.accuracy,
        whole.mean_loss,
        whole.examples,
        spread_of(
            [tallies[c].accuracy for c in evaluated], [tallies[c].examples for c in evaluated]
        ),
        whole.scores,
    )
