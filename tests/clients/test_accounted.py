"""An epsilon is kept only for what its hiding itself does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from flwr_splitmix.clients import ClientError, UShapeClient
from flwr_splitmix.data.texts.batch import TextBatch
from flwr_splitmix.hiding import DPSGD, DPForward, Hiding, Sent
from flwr_splitmix.testing.toy_texts import TextToy
from tests.clients.ushape import ORDER

TOY = TextToy(clients=1, dropout=0.0)


class Plain(UShapeClient):
    def obfuscate(self, batch: TextBatch) -> Sent:
        return Hiding.obfuscate(self.hiding, batch)


class OverAllTokens(UShapeClient):
    def loss(self, hidden: Tensor, sent: Sent) -> Tensor:
        return Hiding.loss(self.hiding, hidden, sent)


class PlainForward(DPForward):
    def obfuscate(self, batch: TextBatch) -> Sent:
        return Hiding.obfuscate(self, batch)


class Charged(PlainForward):
    def charge(self, kind: str, records: np.ndarray) -> None:
        super().charge(kind, records)


class Heir(Charged):
    """Changes nothing that the epsilon rests on."""

    def metrics(self) -> dict[str, float]:
        return {}


class OwnUpdate(DPSGD):
    def before_update(self) -> None:
        pass


def attach(hiding: Callable[[], Hiding], kind: type[UShapeClient] = UShapeClient) -> Any:
    (client,) = replace(TOY, kind=kind, hiding=hiding).clients_for(repeatable_secrets=False)
    return client.attach(ORDER, None)


@pytest.mark.parametrize(
    ("hiding", "kind", "said"),
    [
        (DPForward, Plain, r"Plain\.obfuscate is your own, and DPForward does not account for"),
        (DPSGD, Plain, r"Plain\.obfuscate is your own, and DPSGD"),
        (DPSGD, OverAllTokens, r"OverAllTokens\.loss is your own, and DPSGD"),
        (PlainForward, UShapeClient, r"PlainForward\.obfuscate is your own.* also `charge`"),
        (OwnUpdate, UShapeClient, r"OwnUpdate\.before_update is your own"),
    ],
)
def test_no_epsilon_is_kept_for_what_a_method_of_ones_own_does(
    hiding: Callable[[], Hiding], kind: type[UShapeClient], said: str
) -> None:
    """The hiding went on to charge what it would have sent: 8 where plain hidden states left."""
    with pytest.raises(ClientError, match=said):
        attach(hiding, kind)


@pytest.mark.parametrize(
    ("hiding", "kind"),
    [
        (Hiding, Plain),
        (DPForward, OverAllTokens),  # its epsilon is about messages alone
        (Charged, UShapeClient),
        (Heir, UShapeClient),
        (DPSGD, UShapeClient),
    ],
)
def test_what_no_epsilon_rests_on_can_be_overridden(
    hiding: Callable[[], Hiding], kind: type[UShapeClient]
) -> None:
    assert attach(hiding, kind)["num-examples"] > 0
