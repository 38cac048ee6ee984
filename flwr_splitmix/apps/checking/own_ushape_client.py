"""Check of a U-shaped client of a user's own app: its data, head, tail, loss and scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.clients import Order, SentBatch, UShapeClient
from flwr_splitmix.clients.finite import check_finite
from flwr_splitmix.clients.ushape.checked_methods import (
    check_counted,
    checked_hidden,
    checked_logits,
    checked_sent,
    plain_scores,
)
from flwr_splitmix.data.examples import Example, fetch
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.errors import FAULTS, ForeseenError
from flwr_splitmix.limits import LARGEST
from flwr_splitmix.links.errors import own_sentence
from flwr_splitmix.scoring.texts import TextScores
from flwr_splitmix.server.intake.checks import UploadError
from flwr_splitmix.server.intake.ushape import read_scores
from flwr_splitmix.words import cause, counted

_ORDER = Order(client=0, seed=0, server_round=1, num_rounds=1)


def look_at_ends(client: UShapeClient, example: Example, report: Report) -> None:
    """Take a step with one or two examples and report what goes wrong.

    The trunk's outputs are taken to be what the head has sent. With a loss or scores of its own, a
    batch of test data is scored, too. What goes wrong there is a remark: a strategy need not
    evaluate.
    """
    upload: SentBatch | None = None
    with _errors_reported("the head", report.problems):
        batch = MaskedBatch.of(example, client.device)
        client.ends.width(batch, own_masks=client.hiding.own_masks)
        upload = _messages(client, batch)
    if upload is None or not _passes_server(client, upload, report):
        return
    has_own_scoring = client.own_loss or client.scores is not TextScores
    learned = "loss, or the tail in it," if client.own_loss else "the tail"
    with _errors_reported(learned, report.problems):
        client.in_flight(upload).decode(upload.messages)
        report.facts["tail"] = f"{_parameters(client.tail)} parameters"
    if not report.ok or not has_own_scoring:
        return
    for kind, data in client.tests.items():
        size = 0 if data is None else min(len(data), client.batches.size)  # type: ignore[arg-type]
        if data is not None and size:
            begin = f"an evaluation would lose this client's {kind} test data: "
            with _errors_reported(f"{begin}the tail or its scores", report.remarks, begin):
                places = np.arange(size)
                tests = fetch(data, places, floats=client.batches.floats)
                _score(client, MaskedBatch.of(tests, client.device))


@contextmanager
def _errors_reported(subject: str, findings: list[str], begin: str = "") -> Iterator[None]:
    """Add the block's error to the findings: a foreseen one as it is, others with their subject."""
    try:
        yield
    except UploadError as error:
        findings.append(f"{begin}{error}")
    except ForeseenError as error:
        findings.append(f"{begin}{own_sentence(error)}")
    except FAULTS as error:  # a user's code may raise anything
        findings.append(f"{subject} raised {cause(error, 300)}")


def _messages(client: UShapeClient, batch: MaskedBatch) -> SentBatch:
    """Begin a round, and return the messages that a step sends of a batch."""
    client.attach(_ORDER, None)
    client.segments.train()
    upload = checked_sent(client.hiding.obfuscate(batch))
    check_finite(
        "head", client.head, batch.inputs, *(message.detach() for message in upload.messages)
    )
    return upload


def _passes_server(client: UShapeClient, upload: SentBatch, report: Report) -> bool:
    """Report messages that a server would not take, and their size."""
    message, learns = upload.messages[0], [p for p in client.head.parameters() if p.requires_grad]
    examples, tokens, width = message.shape
    wrong = ""
    if upload.mask.shape[:1] != (examples,) or upload.mask.shape[1:] not in ((1,), (tokens,)):
        wrong = (
            f"messages are {tuple(message.shape)} and their mask {tuple(upload.mask.shape)}; "
            "expected (examples, tokens, width) and (examples, tokens), or (examples, 1)"
        )
    elif not message.is_floating_point():
        wrong = f"the head returns {message.dtype}; expected torch.float32, the trunk's type"
    elif float(message.detach().abs().max()) > LARGEST:
        wrong = (
            f"the head returns numbers beyond {LARGEST:g}, which the server refuses; normalise the "
            "inputs"
        )
    elif learns and not any(each.requires_grad for each in upload.messages):
        wrong = (
            "the head returns data without a gradient, though it has parameters to train; remove "
            "detach() or no_grad() from its forward, or freeze it with requires_grad_(False)"
        )
    if wrong:
        report.problems.append(wrong)
        return False
    report.facts["head"] = (
        f"{_parameters(client.head)} parameters; {counted(tokens, 'token')} x {width} for each "
        "example"
    )
    if message.dtype != torch.float32:
        report.remarks.append(
            f"the head returns {message.dtype}; the server takes the type of its trunk's "
            f"parameters only, torch.float32 unless you change it: return .float(), or give the "
            f"trunk {message.dtype}"
        )
    return True


@torch.no_grad()
def _score(client: UShapeClient, batch: MaskedBatch) -> None:
    """Score a batch of test examples; raises what an evaluation would."""
    scores, has_own_scores = client.scores(), client.scores is not TextScores
    client.segments.eval()
    first = scores.begin(batch)
    client.ends.width(first, own_masks=client.hiding.own_masks)  # it names what does not fit
    upload = checked_sent(client.hiding.obfuscate(first))
    hidden = checked_hidden(
        client.hiding.recover(upload.messages, upload), client.hiding.side.width
    )
    logits: object = client.hiding.logits(hidden, upload)
    logits = checked_logits(logits, len(first.inputs), own_scores=has_own_scores)
    if (
        scores.add(logits, upload.batch) is not None or not has_own_scores
    ):  # a text is generated by many steps
        return
    examples = len(batch.inputs)
    check_counted(scores.examples, examples, f"it was given {examples}")
    read_scores({"examples": scores.examples, "scores": plain_scores(scores.result())})


def _parameters(part: nn.Module) -> str:
    return f"{sum(p.numel() for p in part.parameters()):,}"
