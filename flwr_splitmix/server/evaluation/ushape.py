"""Evaluation of the U shape: the server runs the trunk, each client scores its own outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_splitmix.description import UShapeDescription
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.links import Clients
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.evaluation.client_scores import combine
from flwr_splitmix.server.evaluation.over_link import (
    Kind,
    batches_of_tests,
    sizes_of_tests,
    spread_of,
)
from flwr_splitmix.server.evaluation.time_limit import TimeLimit
from flwr_splitmix.server.intake.checks import read_each
from flwr_splitmix.server.intake.ushape import read_scores, warn_of_left_out
from flwr_splitmix.server.segments.trunk import TrunkForward

MAX_ANSWER = 4096
"""Most exchanges for one test batch, so that a generating client must stop."""

_ENDLESS = (
    f"asks for more than {MAX_ANSWER} further batches in place of a scored one: the add of its "
    "scores must return None once the examples are scored, or, of generated texts, complete"
)
"""Why a client that has not stopped is left out."""


def evaluate_in_u_shape(
    clients: Clients, kind: Kind, forward: TrunkForward[Mapping[str, Any]], warned: SeenKeys
) -> EvaluationResult | None:
    """Have every client score its model: its head and tail, the server's trunk.

    "federated" uses each client's own test split and weights by its size; "benchmark" uses the
    common public test set. Only scores over its whole test set leave a client, so one with far
    more test examples than the others is not evaluated; `combine` describes how they are combined.
    Return None if no client has such data.

    Parameters
    ----------
    forward
        Passes the messages in clients' replies through the trunk.
    warned
        Scores that a warning has named before; added to.
    """
    sizes = sizes_of_tests(clients, kind, in_parts=False)
    if not sizes:
        return None
    descriptions = clients.described(UShapeDescription)
    batch = {client: descriptions[client].batch_size for client in sizes}
    least = {client: descriptions[client].least_batch for client in sizes}
    limit = TimeLimit()
    for payloads in batches_of_tests(clients, limit, kind, sizes, batch, least=least):
        replies = clients.call("encode_test", payloads, phase="evaluate")
        for _ in range(MAX_ANSWER):
            if not replies or limit.over:
                break
            outputs = forward(replies)
            answers = clients.call(
                "decode_test", {c: {"outputs": o} for c, o in outputs.items()}, phase="evaluate"
            )
            replies = {c: answer for c, answer in answers.items() if "messages" in answer}
        if limit.over:
            limit.leave_out(clients, replies)
        for client in replies:
            clients.fail(client, _ENDLESS)
    scored = read_each(
        clients,
        clients.call("score", {c: {"kind": kind} for c in sizes}, phase="evaluate"),
        lambda _, reply: read_scores(reply),
    )
    if not scored:
        return None
    warn_of_left_out(scored.values(), warned)
    # A client cannot claim to have scored more examples than it reported.
    weights = {c: min(read.examples, sizes[c]) for c, read in scored.items()}
    examples = sum(weights.values())
    means = combine(scored, weights, warned)
    spread = spread_of([read.scores["accuracy"] for read in scored.values()], [*weights.values()])
    accuracy, loss = means.pop("accuracy"), means.pop("loss")
    return EvaluationResult(kind, accuracy, loss, examples, spread, means)
