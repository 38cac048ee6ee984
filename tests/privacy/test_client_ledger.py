"""A client's ledger and its copies: what one has spent is not lost on another."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy

import pytest

from flwr_splitmix.privacy import GaussianNoise, Release
from flwr_splitmix.privacy.client_ledger import ClientLedger

DELTA = 1e-5
SENT = Release(noise=GaussianNoise(sigma_s=30.0, sigma_y=20.0), patches=64, width=192, ratio=0.5)
Copier = Callable[[ClientLedger], ClientLedger]
COPIERS: dict[str, Copier] = {
    "deepcopy": deepcopy,
    "pickle": lambda ledger: pickle.loads(pickle.dumps(ledger)),
}


def test_the_ledgers_own_states_change_nothing() -> None:
    ledger = ClientLedger(records=2)
    ledger.charge(SENT, records=[0])
    state = ledger.state_dict()
    ledger.charge(SENT, epoch=1, records=[0])
    spent = ledger.epsilon(DELTA)
    ledger.load_state_dict(state)
    assert ledger.epsilon(DELTA) == spent


@pytest.mark.parametrize("copier", COPIERS.values(), ids=COPIERS)
def test_a_copy_goes_on_with_what_another_has_spent(copier: Copier) -> None:
    """A run that goes on with copies of a client must not forget what the first one sent."""
    template = ClientLedger(records=2)
    first, second = copier(template), copier(template)
    first.charge(SENT, records=[0])
    second.load_state_dict(first.state_dict())
    assert second.epsilon(DELTA) == first.epsilon(DELTA) > 0


@pytest.mark.parametrize("copier", COPIERS.values(), ids=COPIERS)
def test_the_copy_of_a_used_ledger_adds_up(copier: Copier) -> None:
    used = ClientLedger(records=2)
    used.charge(SENT, records=[0])
    again = copier(used)
    used.charge(SENT, epoch=1, records=[0])
    again.load_state_dict(used.state_dict())
    assert again.epsilon(DELTA) > used.epsilon(DELTA)
