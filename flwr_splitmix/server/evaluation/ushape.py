"""Evaluation of the U shape: the trunk helps, each client scores its own answers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor

from flwr_splitmix.links import Clients
from flwr_splitmix.observers.events import EvaluationResult
from flwr_splitmix.server.intake.split import UploadError, check_number, plausible
from flwr_splitmix.server.intake.ushape import read_each, read_scores

MAX_ANSWER = 4096
"""Most exchanges for one test batch: a client that generates must come to an end."""

Pass = Callable[[Mapping[int, Mapping[str, Any]]], dict[int, list[Tensor]]]
"""Takes replies with messages through the trunk: outputs by client; it leaves out who errs."""


def evaluate_texts(
    clients: Clients, kind: Literal["federated", "benchmark"], through_trunk: Pass
) -> EvaluationResult | None:
    """Have every client score its model: its head and tail, the server's trunk.

    "federated" takes each client's own test split and weights by its size; "benchmark" takes the
    common public test set. Only numbers over a client's whole test set leave it: scores are means
    of the clients' scores. None if no client has such data.
    """
    known = {c: clients.descriptions[c] for c in clients.alive}
    sizes = {}
    for client, said in known.items():
        size = said.get(f"{kind}-examples", 0)
        try:
            check_number(f"{kind}-examples", size, 0)
        except UploadError as error:
            clients.fail(client, str(error))
            continue
        if size:
            sizes[client] = size
    if not sizes:
        return None
    sizes = dict(zip(sizes, plausible(list(sizes.values())), strict=True))
    batch = {c: int(known[c]["batch-size"]) for c in sizes}
    for number in range(max(-(-size // batch[c]) for c, size in sizes.items())):
        replies = clients.call(
            "encode_test",
            {
                c: {
                    "kind": kind,
                    "start": number * batch[c],
                    "stop": min((number + 1) * batch[c], size),
                }
                for c, size in sizes.items()
                if number * batch[c] < size
            },
        )
        for _ in range(MAX_ANSWER):
            if not replies:
                break
            outputs = through_trunk(replies)
            answers = clients.call("decode_test", {c: {"outputs": o} for c, o in outputs.items()})
            replies = {c: answer for c, answer in answers.items() if "messages" in answer}
        for client in replies:
            clients.fail(client, f"generates more than {MAX_ANSWER} tokens for one batch")
    scored = read_each(
        clients,
        clients.call("score", {c: {"kind": kind} for c in sizes}),
        lambda _, reply: read_scores(reply),
    )
    if not scored:
        return None
    # What a client claims to have scored does not outweigh what it said it has.
    weights = {c: min(examples, sizes[c]) for c, (examples, _) in scored.items()}
    examples = sum(weights.values())
    names = set.intersection(*(set(scores) for _, scores in scored.values()))
    means = {
        name: sum(weights[c] * scores[name] for c, (_, scores) in scored.items()) / examples
        for name in sorted(names)
    }
    spread = statistics.pstdev([scores["accuracy"] for _, scores in scored.values()])
    accuracy, loss = means.pop("accuracy"), means.pop("loss")
    return EvaluationResult(kind, accuracy, loss, examples, spread, means)
