"""Law 6, the wire carries what it should: kept patches and labels as requested, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.events import Exchange, StepDone
from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import Mixer, Plan, Share, known_shares, share_from_wire
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.testing.parted import goes_in_parts, join_parts
from flwr_splitmix.testing.recording import Recording, plan_of, recorded_bytes, watch_segment
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.uploads import check_upload
from flwr_splitmix.testing.whole import MakeStrategy

LAW = "law 6, the wire carries what it should"
SEED = 3
STEP_CALL_KEYS = {"number", "progress", "gradient", "plan", "last"}
"""Keys that a step's call must have."""


def check_wire(
    make_strategy: MakeStrategy,
    toy: Toy | None = None,
    *,
    kind: type[SplitClient] = SplitClient,
    steps: int = 3,
) -> list[str]:
    """Record a round, and check everything that each client receives and sends in each step.

    - Up: only smashed data and labels. The smashed data of each pass are exactly what its share
      keeps of the lower segment's output, and the number of patches kept in a group is the one
      that its mixer declares (`Mixer.cover`). The labels are, according to the share, the batch's
      classes, its ids, or soft labels that sum to at most `lam`.
    - Down: the client's own part of the plan, nothing about others, and the cut-layer gradient of
      its own share.
    - The bytes counted by exchanges and metrics are those of the recorded tensors.

    Parameters
    ----------
    make_strategy
        Called with the toy's upper segment and options of `SplitStrategy`.
    kind
        Class of the clients.
    steps
        Number of steps.

    Returns
    -------
    The parts that were not checked, with reasons; empty if all were.

    Raises
    ------
    AssertionError
        With the step, the client, and what was wrong.
    """
    toy = toy or Toy()
    recording = Recording()
    strategy = make_strategy(
        toy.upper(),
        optimizer=sgd(0.1),
        schedule=constant,
        steps_per_round=steps,
        device="cpu",
        seed=SEED,
        observers=[recording],
    )
    clients = toy.make_clients(sgd(0.1), kind, shares=strategy.mixer.shares)
    outputs = [watch_segment(client.segment) for client in clients]
    failure = ""
    try:
        strategy.fit(clients, 1)
    except LinkError as error:  # the exchanges before it may explain it
        failure = str(error)
    for client, reason in recording.failures.items():
        failure = failure or f"client {client}: {reason}"
    return check_recording(recording, outputs, strategy, toy, steps, failure)


def check_recording(
    recording: Recording,
    all_outputs: Sequence[Sequence[Tensor]],
    strategy: SplitStrategy,
    toy: Toy,
    steps: int,
    failure: str = "",
) -> list[str]:
    """Check a recorded round, from any source, against the law.

    Parameters
    ----------
    recording
        The exchanges of the round, with the bytes counted for each, and its steps.
    all_outputs
        Outputs (b, tokens, d) of the lower segment in each training step, by client index.
    strategy
        The strategy that ran one round of `steps` steps.
    toy
        The toy whose clients took part.
    failure
        Reason why the round may be incomplete.

    Returns
    -------
    As for `check_wire`.

    Raises
    ------
    AssertionError
        As for `check_wire`.
    """
    share_kinds = known_shares(strategy.mixer.shares)
    for client in range(toy.clients):
        down, up, outputs = recording.down[client], recording.up[client], all_outputs[client]
        if goes_in_parts(down):
            down, up, outputs = join_parts(LAW, down, up, outputs)
        else:
            down, up = _joined(down, up)
        _check_uploads(client, down, up, toy, outputs, share_kinds)
        _check_orders(client, down, recording.steps, strategy.mixer)
    if failure or len(recording.steps) != steps:
        raise AssertionError(f"{LAW}: the round did not run through; {failure}")
    for step in recording.steps:
        _check_patches(plan_of(step), strategy.mixer, f"{LAW}: step {step.number}")
    (row,) = strategy.rows
    for events, column in ((recording.up, "uplink_bytes"), (recording.down, "downlink_bytes")):
        _check_bytes([e for exchanges in events.values() for e in exchanges], row[column], column)
    return _unchecked([plan_of(step) for step in recording.steps], strategy.mixer)


def _joined(
    down: Sequence[Exchange], up: Sequence[Exchange]
) -> tuple[list[Exchange], list[Exchange]]:
    """Return calls and replies, with a gradient sent ahead of a plan joined to the plan's call."""
    calls: list[Exchange] = []
    replies: list[Exchange] = []
    ahead: Exchange | None = None
    for place, (call, reply) in enumerate(zip_longest(down, up)):
        if call is not None and ahead is not None:
            if call.payload["gradient"] is not None:
                raise AssertionError(f"{LAW}: client {call.client} is sent a gradient twice")
            call = replace(call, payload={**call.payload, "gradient": ahead.payload["gradient"]})
            ahead = None
        last = place == len(down) - 1
        if call is not None and call.payload["plan"] is None and not last:
            if reply is not None and reply.payload:
                raise AssertionError(f"{LAW}: client {call.client} replies to a gradient alone")
            ahead = call
            continue
        calls += [] if call is None else [call]
        replies += [] if reply is None else [reply]
    return calls, replies


def _check_uploads(
    client: int,
    down: Sequence[Exchange],
    up: Sequence[Exchange],
    toy: Toy,
    outputs: Sequence[Tensor],
    share_kinds: Sequence[type[Share]],
) -> None:
    """Compare one client's replies with its lower segment's outputs and with its calls."""
    requests = sum(call.payload["plan"] is not None for call in down)
    answered = sum(bool(reply.payload) for reply in up)
    if not answered <= len(outputs) <= requests:
        raise AssertionError(
            f"{LAW}: client {client} ran its lower segment {len(outputs)} times in {requests} steps"
        )
    batches = Batches(toy.data(client), toy.batch)
    for number, (call, reply) in enumerate(zip(down, up, strict=False)):
        where = f"{LAW}: step {number}, client {client}"
        if call.payload["plan"] is None:
            if reply.payload:
                raise AssertionError(f"{where} replies {sorted(reply.payload)} to the round's end")
            continue
        shares = [p if p is None else share_from_wire(p, share_kinds) for p in call.payload["plan"]]
        _, classes = batches.next_batch(SEED, client)
        ids = torch.from_numpy(batches.indices)
        check_upload(where, reply.payload, shares, outputs[number], classes, ids, toy.classes)


def _check_orders(
    client: int, calls: Sequence[Exchange], steps: Sequence[StepDone], mixer: Mixer
) -> None:
    """Compare the plans and gradients sent to one client with its own part of the plans."""
    for number, (call, step) in enumerate(zip(calls, steps, strict=False)):
        where = f"{LAW}: step {number}, client {client}"
        if call.payload.keys() != STEP_CALL_KEYS:
            raise AssertionError(f"{where} is sent {', '.join(sorted(call.payload))}")
        plan = plan_of(step)
        own_shares = [None if share is None else share.to_wire() for share in plan.shares(client)]
        if not call.payload["plan"] == plan.for_node(client) == own_shares:
            raise AssertionError(f"{where} is sent other than its own part of the plan")
        others = set(_mentioned(own_shares)) - {client}
        if others and not mixer.raw_inputs_cross:
            raise AssertionError(f"{where} learns of clients {sorted(others)}")
    for number, call in enumerate(calls[: len(steps) + 1]):
        gradients = call.payload["gradient"]
        shapes = gradients and [None if g is None else tuple(g.shape) for g in gradients]
        expected = _gradient_shapes(client, steps[number - 1]) if number else None
        if shapes != expected:
            raise AssertionError(
                f"{LAW}: step {number}, client {client} is sent gradients of shapes {shapes}, "
                f"those of its own shares are {expected}"
            )


def _gradient_shapes(client: int, step: StepDone) -> list[tuple[int, ...] | None]:
    plan = plan_of(step)
    assert step.mixed is not None
    assert step.result is not None
    shapes: list[tuple[int, ...] | None] = [None] * len(plan.passes)
    batch = plan.shape.batch
    for row, source in enumerate(step.mixed.sources):
        part = step.result.gradient[row * batch : (row + 1) * batch]
        for member in source.members:
            if member.client == client and member.share.learns:
                shapes[source.index] = tuple(member.share.pick(part).shape)
    return shapes


def _check_patches(plan: Plan, mixer: Mixer, where: str) -> None:
    """Check the number of patches that a group's members send, as announced by their shares.

    A share of part of the width sends part of each patch.
    """
    n, width = plan.shape.patches, plan.shape.width
    for group in plan.groups:
        shares = [member.share for member in group.members]
        if not all(share.deterministic for share in shares):
            continue
        shapes = [share.upload_shape(plan.shape.size) for share in shares]
        numbers = sum(
            (tokens - plan.shape.prefix) * upload_width for _, tokens, upload_width in shapes
        )
        most = n * len(shares) if mixer.cover == "weighted" else n
        if numbers > most * width or (numbers < most * width and mixer.cover != "partial"):
            raise AssertionError(
                f"{where}: a group of {len(shares)} sends {numbers / width:g} patches a sample, "
                f"its mixer needs {most}"
            )


def _check_bytes(events: Sequence[Exchange], total: int, column: str) -> None:
    for event in events:
        if event.nbytes != (size := recorded_bytes(event.payload)):
            raise AssertionError(
                f"{LAW}: client {event.client}, {event.direction}: {event.nbytes} bytes were "
                f"counted, the tensors have {size}"
            )
    recorded = sum(recorded_bytes(event.payload) for event in events)
    if total != recorded:
        raise AssertionError(f"{LAW}: {column} is {total}, the recorded tensors have {recorded}")


def _unchecked(plans: Sequence[Plan], mixer: Mixer) -> list[str]:
    shares = (member.share for plan in plans for member in plan.members)
    drawing = {type(share).__name__ for share in shares if not share.deterministic}
    reasons = [f"the numbers of uploads: {name} draws noise" for name in sorted(drawing)]
    if mixer.raw_inputs_cross:
        reasons.append("that a client learns of itself only: raw inputs cross between clients")
    return reasons


def _mentioned(contents: Any) -> Iterator[int]:
    """Yield the clients in plain values: those of (client, share) pairs, at any depth."""
    if isinstance(contents, Mapping):
        for value in contents.values():
            yield from _mentioned(value)
    elif isinstance(contents, (list, tuple)):
        if len(contents) == 2 and isinstance(contents[0], int) and isinstance(contents[1], Mapping):
            yield contents[0]
        for value in contents:
            yield from _mentioned(value)
