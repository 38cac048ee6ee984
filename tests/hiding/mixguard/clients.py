"""Clients with MixGuard, for tests without a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from flwr_splitmix.clients import MixGuardClient, Order
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding.mixguard import MixGuardOptions
from flwr_splitmix.testing.laws import TextToy

ORDER = Order(0, 7, 1, 1)


PLAIN = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=0, perturbation=None)


TOY = TextToy(kind=MixGuardClient, clients=1, options=PLAIN, dropout=0.0)


def client_of(toy: TextToy = TOY, **options: Any) -> MixGuardClient:
    adapted = replace(toy, options=replace(toy.options, **options))
    client = adapted.clients_for(repeatable_secrets=False)[0]
    assert isinstance(client, MixGuardClient)
    client.attach(ORDER, None)
    return client


def batch_of(toy: TextToy = TOY, size: int = 4) -> MaskedBatch:
    return MaskedBatch.of(toy.texts(0, size).batch(np.arange(size)), torch.device("cpu"))
