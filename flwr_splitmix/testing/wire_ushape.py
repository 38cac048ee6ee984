"""Law 6 for the U shape: hidden states and gradients cross, but no token id, label or logit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.events import Exchange, RoundDone
from flwr_splitmix.links import LinkError
from flwr_splitmix.observers import Observer
from flwr_splitmix.schedule import constant
from flwr_splitmix.testing.recording import copied, recorded_bytes
from flwr_splitmix.testing.toy import MakeAny, sgd
from flwr_splitmix.testing.toy_texts import TextToy

LAW = "law 6, the wire carries what it should"

_GROUP = {"messages", "mask"}
UP: Mapping[str, tuple[set[str], set[str]]] = {
    "encode": (_GROUP, {"public"}),
    "decode": ({"gradients"}, set()),
    "encode_public": ({"public"}, set()),
    "decode_public": (set(), set()),
    "encode_test": (_GROUP, set()),
    "decode_test": (set(), _GROUP),
    "score": ({"examples", "scores"}, {"epsilons"}),
}
"""Required and optional keys of a client's reply, by exchange."""


class _Everything(Observer):
    """Observer that keeps all exchanges, with copies of tensors."""

    def __init__(self) -> None:
        self.events: list[Exchange] = []
        self.failures: dict[int, str] = {}

    def on_exchange(self, event: Exchange) -> None:
        """Keep a copy of an exchange."""
        self.events.append(copied(event))

    def on_round(self, event: RoundDone) -> None:
        """Keep the reasons why clients dropped out."""
        self.failures |= event.failures


def check_ushape_wire(
    make_strategy: MakeAny, toy: TextToy | None = None, *, steps: int = 3
) -> list[Exchange]:
    """Record a round with its evaluation, and check every payload that crosses.

    - Up: messages and gradients, floating-point (b, T, d), and masks, uint8 (b, T) of 0 and 1; in
      an evaluation also one number for each score. d is the hidden width, which a toy must choose
      different from the numbers of tokens and of classes.
    - Down: the trunk's outputs and the gradients of the messages, of the same shapes.
    - The bytes counted by exchanges and metrics are those of the recorded tensors.

    Returns
    -------
    The exchanges of the round, for further checks.

    Raises
    ------
    AssertionError
        With the exchange, the client, and what was wrong.
    """
    toy = toy or TextToy(tests=6)
    recording = _Everything()
    strategy = make_strategy(
        toy.server(),
        optimizer=sgd(0.1),
        schedule=constant,
        steps_per_round=steps,
        device="cpu",
        seed=3,
        evaluation="federated" if toy.tests else "none",
        observers=[recording],
    )
    failure = ""
    try:
        strategy.fit(toy.clients_for(strategy, sgd(0.1)), 1)
    except LinkError as error:  # the exchanges before it may explain it
        failure = str(error)
    for event in recording.events:
        where = f"{LAW}: client {event.client}, {event.method} {event.direction}"
        if event.direction == "up":
            _check_reply(event, toy.width, where)
        else:
            _check_tensors(event.payload, toy.width, where)
        if event.nbytes != (recorded := recorded_bytes(event.payload)):
            raise AssertionError(
                f"{where}: {event.nbytes} bytes were counted, the tensors have {recorded}"
            )
    for client, reason in recording.failures.items():
        failure = failure or f"client {client}: {reason}"
    if failure:
        raise AssertionError(f"{LAW}: the round did not run through; {failure}")
    (row,) = strategy.rows
    for direction, column in (("up", "uplink_bytes"), ("down", "downlink_bytes")):
        total = sum(
            recorded_bytes(event.payload)
            for event in recording.events
            if event.direction == direction and event.phase == "train"
        )
        if row[column] != total:
            raise AssertionError(
                f"{LAW}: {column} is {row[column]}, the recorded tensors have {total}"
            )
    return recording.events


def _check_reply(event: Exchange, width: int, where: str) -> None:
    needed, allowed = UP[event.method]
    keys = set(event.payload)
    if keys and not needed <= keys <= needed | allowed:
        raise AssertionError(
            f"{where} holds {', '.join(sorted(keys))}; allowed keys: "
            f"{', '.join(sorted(needed | allowed)) or 'none'}"
        )
    if event.method == "score":
        epsilons = event.payload.get("epsilons", {})
        values = [event.payload["examples"], *event.payload["scores"].values(), *epsilons.values()]
        if not all(isinstance(value, (int, float)) for value in values):
            raise AssertionError(f"{where} holds more than a number for each score")
        return
    _check_tensors(event.payload, width, where)


def _check_tensors(payload: Any, width: int, where: str, key: str = "") -> None:
    """Raise AssertionError unless all tensors are hidden states, their gradients, or masks."""
    if isinstance(payload, Mapping):
        for name, value in payload.items():
            _check_tensors(value, width, where, name)
    elif isinstance(payload, Sequence) and not isinstance(payload, str):
        for value in payload:
            _check_tensors(value, width, where, key)
    elif isinstance(payload, Tensor):
        if key == "mask":
            fits = payload.dtype == torch.uint8 and payload.dim() == 2 and int(payload.max()) <= 1
        else:
            fits = payload.is_floating_point() and payload.dim() == 3 and payload.shape[2] == width
        if not fits:
            raise AssertionError(
                f"{where}: {key} is {tuple(payload.shape)} of {payload.dtype}; expected masks "
                f"(b, T) of uint8, or floating (b, T, {width})"
            )
