"""What methods of an own hiding, or the loss of an own client, wrongly return is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import ClientError, UShapeClient
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import Hiding, SentBatch
from flwr_splitmix.testing.laws import TextToy
from tests.clients.ushape import attached, decode, encode


def states(hiding: Hiding, batch: MaskedBatch) -> Tensor:
    hidden: Tensor = hiding.side.head(batch.inputs, batch.mask)
    return hidden


def unmasked(hiding: Hiding, batch: MaskedBatch) -> SentBatch:
    mask: Any = None
    return SentBatch([states(hiding, batch)], mask, batch)


@pytest.mark.parametrize(
    ("hook", "wrong", "message"),
    [
        ("obfuscate", lambda *_: None, r"None; expected a SentBatch\(messages, mask, batch\)"),
        ("obfuscate", states, r"a tensor \(4, \d, 5\); .* a SentBatch"),
        (
            "obfuscate",
            lambda h, b: SentBatch(cast(Any, states(h, b)), b.mask, b),
            r"a SentBatch with messages a tensor \(4, \d, 5\); expected a list of tensors",
        ),
        (
            "obfuscate",
            lambda h, b: SentBatch([b.mask], b.mask, b),
            r"messages a list of a tensor \(4,",
        ),
        ("obfuscate", unmasked, "with mask None;"),
        ("recover", lambda *_: None, "None; expected one tensor"),
        ("recover", lambda h, outputs, sent: outputs, r"a list of a tensor .* outputs\[0\]"),
        ("recover", lambda h, outputs, sent: outputs[0][..., :3], r"\(4, \d, 3\); .* tokens, 5\)"),
        ("recover", lambda h, outputs, sent: outputs[0].detach(), "no gradient .* not detach them"),
        ("recover", lambda h, outputs, sent: sent.messages[0], "no gradient .* from them, and not"),
        ("perturb", lambda *_: None, r"None; expected .* shape \(4, \d, 5\)"),
        ("perturb", lambda h, gradient, *_: gradient[:1], r"a tensor \(1, \d, 5\); .* shape \(4, "),
    ],
)  # fmt: skip
def test_what_a_hidings_method_wrongly_returns_is_told_with_its_name(
    hook: str, wrong: Any, message: str
) -> None:
    client = attached(hiding=type("Own", (Hiding,), {hook: wrong})())
    with pytest.raises(ClientError, match=rf"^{hook} returns .*{message}"):
        decode(client, encode(client))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda *_: None, "None; expected a tensor of one number"),
        (lambda *_: 0.5, "a float; expected a tensor of one number"),
        (lambda client, hidden, sent: hidden.sum(2), r"a tensor \(4, \d\); expected a"),
        (lambda client, hidden, sent: hidden.detach().sum(), "without a gradient; .* hidden"),
        (lambda client, *_: next(client.tail.parameters()).sum(), "not depend on hidden"),
    ],
)
def test_what_a_clients_loss_wrongly_returns_is_told(loss: Any, message: str) -> None:
    client = attached(TextToy(clients=1, kind=type("Own", (UShapeClient,), {"loss": loss})))
    with pytest.raises(ClientError, match=rf"^loss returns .*{message}"):
        decode(client, encode(client))


class Scoring(Hiding):
    def __init__(self, wrong: Any) -> None:
        super().__init__()
        self.wrong = wrong

    def logits(self, hidden: Tensor, sent: SentBatch) -> Any:
        return self.wrong(super().logits(hidden, sent))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda logits: None, "None"),
        (lambda logits: logits[:1], r"a tensor \(1, \d\)"),
        (lambda logits: logits[0], r"a tensor \(\d,\)"),
    ],
)
def test_logits_that_do_not_fit_the_texts_are_refused(wrong: Any, message: str) -> None:
    toy = TextToy(clients=1, tests=7, task="classification")
    client = attached(toy, hiding=Scoring(wrong))
    reply = client.run("encode_test", {"kind": "federated", "start": 0, "stop": 4})
    with pytest.raises(ClientError, match=rf"^logits returns {message}; .* \(4, classes\) or"):
        client.run("decode_test", {"outputs": reply["messages"]})


class Decoy(Hiding):
    """Sends noise beside the hidden states, and ignores the answer to it."""

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        sent = super().obfuscate(batch)
        return replace(sent, messages=[*sent.messages, torch.randn_like(sent.messages[0])])


def test_a_message_whose_answer_is_ignored_gets_a_gradient_of_zero() -> None:
    """Torch would refuse a tensor that is not used in the graph."""
    client = attached(hiding=Decoy())
    used, ignored = decode(client, encode(client))["gradients"]
    assert used.any()
    assert torch.equal(ignored, torch.zeros_like(used))


class Returning(Hiding):
    def __init__(self, wrong: Any) -> None:
        super().__init__()
        self.wrong = wrong

    def returned(self, gradients: Sequence[Tensor], sent: SentBatch) -> Any:
        return self.wrong(gradients)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda gradients: None, "None"),
        (lambda gradients: [*gradients, *gradients], r"a list of a tensor .*"),
        (lambda gradients: [gradients[0][:1]], r"a list of a tensor \(1, \d, 5\)"),
    ],
)
def test_a_hiding_that_returns_other_gradients_is_told_which_are_needed(
    wrong: Any, message: str
) -> None:
    client = attached(hiding=Returning(wrong))
    expected = r"expected a list of 1 tensor \(4, \d, 5\), one for each message"
    with pytest.raises(ClientError, match=rf"^returned returns {message}; {expected}"):
        decode(client, encode(client))
