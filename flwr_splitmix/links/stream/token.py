"""Tokens: one node's right to attach to one round of one run, made and checked by its server."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

FOREIGN = (
    "the token was not made by this run; a server or mixer that was started again makes new ones"
)


class TokenError(ValueError):
    """A token is invalid; the message may be sent to the peer that showed it."""


@dataclass(frozen=True)
class Admission:
    """The grant of a token, and its holder.

    Parameters
    ----------
    run
        Random id of the mint that made it.
    node
        Flower's id of the node.
    client
        The client's index.
    server_round, kind
        The round, and whether it is for "train" or "evaluate".
    """

    run: str
    node: int
    client: int
    server_round: int
    kind: str


class TokenMint:
    """Makes and checks tokens with a secret that stays in this process's memory.

    A token is its admission and expiry, readable (base64 of JSON), with an HMAC-SHA256 of both.

    Parameters
    ----------
    seconds
        How long a token is valid.
    option
        The option that sets `seconds`, for errors; "" if none does.
    clock
        Returns the time in seconds; it is read only here, so clocks of nodes need not agree.
    """

    def __init__(
        self, seconds: float, option: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.run = secrets.token_hex(8)
        self.seconds = seconds
        self._option = f" ({option})" if option else ""
        self._clock = clock
        self._secret = secrets.token_bytes(32)

    def admission(self, node: int, client: int, server_round: int, kind: str) -> Admission:
        """Return the admission of one node to one round."""
        return Admission(self.run, node, client, server_round, kind)

    def token(self, admission: Admission) -> str:
        """Return the token for an admission."""
        claims = {**asdict(admission), "expires": self._clock() + self.seconds}
        text = _encode(json.dumps(claims, separators=(",", ":")).encode())
        return f"{text}.{self._mark(text)}"

    def _mark(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), "sha256").hexdigest()

    def check(self, token: str) -> Admission:
        """Check a token and return its admission.

        Raises
        ------
        TokenError
            If this mint did not make it, or it has expired.
        """
        text, _, mark = token.partition(".")
        # Compared in constant time, before the claims are decoded.
        if not hmac.compare_digest(self._mark(text).encode(), mark.encode()):
            raise TokenError(FOREIGN)
        try:
            claims = json.loads(base64.urlsafe_b64decode(text))
        except (ValueError, binascii.Error):
            raise TokenError(FOREIGN) from None
        if claims.pop("expires") < self._clock():
            raise TokenError(
                f"the token has expired: it was valid for {self.seconds:g} s{self._option}, and "
                "the next round brings another"
            )
        return Admission(**{field.name: claims[field.name] for field in fields(Admission)})


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()
