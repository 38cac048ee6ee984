"""Accounts of a run: what is in one, and what is none."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from flwr_splitmix.privacy import RunAccount
from flwr_splitmix.privacy.events import OUTSIDE, UNBOUNDED

RIGHT: dict[str, Any] = {
    "epsilon": 2.5, "unbounded-because": [], "outside": [OUTSIDE["training"]], "rounds": [1, 3],
}  # fmt: skip


def test_plain_values_make_the_same_account() -> None:
    finite = RunAccount.from_plain(RIGHT)
    assert json.loads(json.dumps(finite.to_plain())) == RIGHT
    unbounded = {**RIGHT, "epsilon": math.inf, "unbounded-because": [UNBOUNDED["clip"]]}
    assert RunAccount.from_plain(unbounded).to_plain() == unbounded
    assert RunAccount.from_plain(unbounded) != finite


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": math.nan}, "epsilon is nan"),
        ({"epsilon": True}, "epsilon is True"),
        ({"epsilon": "1"}, "epsilon is '1'"),
        ({"unbounded-because": ["client 3"]}, "words that no ledger has"),
        ({"outside": ["client 3"]}, "words that no ledger has"),
        ({"outside": [3]}, "must be text"),
        ({"rounds": {"1": 2}}, "must be lists"),
        ({"rounds": [1.0]}, "whole numbers from 1"),
        ({"rounds": [-1]}, "whole numbers from 1"),
        ({"unbounded-because": [UNBOUNDED["clip"]]}, "although there is no bound"),
        ({"client": 3}, "and nothing else"),
    ],
)
def test_what_is_no_account_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunAccount.from_plain({**RIGHT, **changes})
