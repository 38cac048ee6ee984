"""Tokens: only this run's are accepted, only for their purpose and their lifetime."""

from __future__ import annotations

import base64
import json

import pytest

from flwr_splitmix.links.stream.token import TokenError, TokenMint


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_says_whom_it_admits_to_what() -> None:
    mint = TokenMint(60)
    admission = mint.admission(node=2**63 + 5, client=3, server_round=7, kind="evaluate")
    assert mint.check(mint.token(admission)) == admission
    assert (admission.node, admission.client, admission.server_round) == (2**63 + 5, 3, 7)


def test_it_expires() -> None:
    clock = Clock()
    mint = TokenMint(60, clock=clock)
    token = mint.token(mint.admission(1, 0, 1, "train"))
    clock.now += 59.9
    mint.check(token)
    clock.now += 0.2
    with pytest.raises(TokenError, match="the token has expired: it was valid for 60 s"):
        mint.check(token)


def test_another_run_has_another_secret() -> None:
    ours, theirs = TokenMint(60), TokenMint(60)
    token = theirs.token(theirs.admission(1, 0, 1, "train"))
    with pytest.raises(TokenError, match="not made by this run"):
        ours.check(token)


def test_every_changed_byte_is_noticed() -> None:
    mint = TokenMint(60)
    token = mint.token(mint.admission(1, 0, 1, "train"))
    for place in range(len(token)):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(TokenError, match="not made by this run"):
            mint.check(changed)


def test_claims_cannot_be_rewritten() -> None:
    mint = TokenMint(60)
    token = mint.token(mint.admission(1, 0, 1, "train"))
    text, _, mark = token.partition(".")
    claims = json.loads(base64.urlsafe_b64decode(text))
    forged = base64.urlsafe_b64encode(json.dumps({**claims, "node": 2}).encode()).decode()
    with pytest.raises(TokenError, match="not made by this run"):
        mint.check(f"{forged}.{mark}")


@pytest.mark.parametrize("token", ["", ".", "a.b", "x" * 10_000, "ä.ö", "e30=.", "\0.\0"])
def test_nonsense_is_refused(token: str) -> None:
    with pytest.raises(TokenError, match="not made by this run"):
        TokenMint(60).check(token)
