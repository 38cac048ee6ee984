"""The recorder: what a server sees of a run, step by step, as input for attacks."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.attacks.recording.trace import (
    MAX_BYTES,
    MAX_STEPS,
    MemoryTrace,
    Recorded,
    Trace,
)
from flwr_splitmix.events import (
    Exchange,
    Messages,
    RoundBegun,
    RoundDone,
    RunEnded,
    RunStarted,
    StepDone,
)
from flwr_splitmix.mixers import Plan, Upload
from flwr_splitmix.mixers.shuffled import ShuffledPlan
from flwr_splitmix.observers.observer import Observer

log = logging.getLogger("flwr.splitmix")

MAX_CLIENTS = 16

MAX_UNWRITTEN_STEPS = 2
"""Steps that may wait in memory to be written to disk."""

RECORDING_WARNING = (
    "this run RECORDS what its server sees, for attacks: smashed data, labels and gradients are "
    "kept in %s%s"
)
FORGET_HINT = "; `splitmix attack forget %s` removes them"


class Recorder(Observer):
    """Keeps the newest steps of a run as its server sees them, and nothing else.

    Parameters
    ----------
    directory
        Where the trace is written, readable by the owner only; None keeps it in memory.
    max_bytes, max_steps
        Bounds of the trace, see `Trace`; the oldest steps and segments are dropped.
    max_clients
        The trace follows this many clients, those with the lowest indices. Clients mixed with them
        are kept too, so that every mixture is complete. With a mixer that shuffles, all are kept.

    Attributes
    ----------
    first
        The weights that the server has sent for clients to begin the run with; None if it has sent
        none, or averages them and began before this recorder.

    Raises
    ------
    ValueError
        If a bound is below 1.
    """

    def __init__(
        self,
        *,
        directory: Path | str | None = None,
        max_bytes: int = MAX_BYTES,
        max_steps: int = MAX_STEPS,
        max_clients: int = MAX_CLIENTS,
    ) -> None:
        if max_clients < 1:
            raise ValueError(f"max_clients is {max_clients}; it must be at least 1")
        self._trace: Trace = (
            MemoryTrace(max_bytes, max_steps)
            if directory is None
            else DiskTrace(directory, max_bytes, max_steps)
        )
        self.directory = None if directory is None else Path(directory)
        self.max_clients = max_clients
        self.first: Mapping[str, Tensor] | None = None
        self._drawn: Counter[int] = Counter()
        self._newest: dict[int, int] = {}
        self._first_round: int | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._unwritten: deque[Future[None]] = deque()

    @property
    def trace(self) -> Trace:
        """The trace, after all pending steps have been written."""
        self._flush()
        return self._trace

    def on_start(self, event: RunStarted) -> None:
        """Warn that the run is recorded."""
        self._first_round, self.first = event.first_round, None
        if self.directory is not None:
            how = FORGET_HINT % event.run_id if event.run_id else ""
            log.warning(RECORDING_WARNING, self.directory, how)

    def on_begin(self, event: RoundBegun) -> None:
        """Keep the lower segment that is sent, and learn where each client is in its data.

        It is kept in every round if it is averaged, and once as `first`.

        A client that failed may have missed a batch, or be back at the end of an earlier round.
        """
        self._drop_undone_steps()
        for client, described in event.descriptions.items():
            if described.drawn is not None:
                self._drawn[client] = described.drawn
        if self.first is None and event.first is not None:
            self.first = event.first()
        if event.averaged and event.segment is not None:
            self.trace.add_segment(event.server_round, event.segment())

    def on_exchange(self, event: Exchange) -> None:
        """Count batches.

        A call with a plan draws a batch, whatever becomes of it; of a batch in parts, the first.
        So does, in the U shape, where no call has a plan or a part, one that is not the last.
        """
        payload = event.payload
        draws = payload.get("plan") is not None and not payload.get("part")
        if not payload.keys() & {"plan", "part"}:
            draws = payload.get("last") is False
        if event.direction == "down" and draws:
            self._newest[event.client] = self._drawn[event.client]
            self._drawn[event.client] += 1

    def on_step(self, event: StepDone) -> None:
        """Keep a step of either shape."""
        if event.plan is not None:
            self._keep_split(event, event.plan)
        else:
            self._keep_messages(event)

    def _keep_split(self, event: StepDone, plan: Plan) -> None:
        followed_plan, rows = _followed_part(event, plan, self.max_clients)
        gradient = None if event.result is None else event.result.gradient
        uploads: dict[int, Upload] = {}
        for client, upload in event.uploads.items():
            if client in followed_plan.clients:
                assert isinstance(upload, Upload)
                uploads[client] = _detached(upload)
        if not uploads:
            return
        self._add(
            Step(
                event.server_round,
                event.number,
                followed_plan,
                uploads,
                None if gradient is None else _rows(gradient, rows, plan.shape.batch),
                None if event.loss is None else event.loss.detach().cpu(),
                {client: self._newest.get(client, 0) for client in sorted(followed_plan.clients)},
            )
        )

    def _keep_messages(self, event: StepDone) -> None:
        clients = sorted(event.uploads)[: self.max_clients]
        messages = {c: u for c in clients if isinstance(u := event.uploads[c], Messages)}
        self._add(
            UShapeStep(
                event.server_round,
                event.number,
                messages={c: list(map(self._on_cpu, u.hidden)) for c, u in messages.items()},
                masks={c: self._on_cpu(u.mask) for c, u in messages.items()},
                outputs={c: list(map(self._on_cpu, event.outputs.get(c, ()))) for c in messages},
                returned={c: list(map(self._on_cpu, event.returned.get(c, ()))) for c in messages},
                gradients={
                    c: [None if t is None else self._on_cpu(t) for t in event.gradients.get(c, ())]
                    for c in messages
                },
                drawn={c: self._newest.get(c, 0) for c in messages},
            )
        )

    def _on_cpu(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the CPU; in memory a copy: a client here may write over its own."""
        return tensor.detach().to("cpu", copy=self.directory is None)

    def _add(self, step: Recorded) -> None:
        """Keep a step; it is written to disk while the next one is computed."""
        if self.directory is None:
            self._trace.add(step)
            return
        while len(self._unwritten) >= MAX_UNWRITTEN_STEPS:
            self._unwritten.popleft().result()
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self._unwritten.append(self._writer.submit(self._trace.add, step))

    def _flush(self) -> None:
        while self._unwritten:
            self._unwritten.popleft().result()

    def on_round(self, event: RoundDone) -> None:
        """Wait until the round's steps are written, before its checkpoint."""
        self._flush()

    def on_end(self, event: RunEnded) -> None:
        """Write all pending steps."""
        if not event.error:
            self._drop_undone_steps()
        self._flush()
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None

    def _drop_undone_steps(self) -> None:
        """Drop the steps after the checkpoint, once the run is resumed: not if that is refused."""
        if self._first_round is not None:
            self.trace.rewind(self._first_round)
            self._first_round = None

    def state(self) -> dict[str, Any]:
        """Return how many batches each client has been asked for."""
        return {"drawn": {str(client): number for client, number in self._drawn.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._drawn = Counter({int(c): int(n) for c, n in state["drawn"].items()})


def _followed_part(event: StepDone, plan: Plan, most: int) -> tuple[Plan, list[int] | None]:
    """Return the part of a plan that involves a followed client, and its groups in the mixture.

    None for the groups means all of them.
    """
    followed = set(sorted(plan.clients)[:most])
    # A shuffled mixture's order is drawn as a whole: a part would be ordered differently.
    if len(plan.clients) <= most or event.mixed is None or isinstance(plan, ShuffledPlan):
        return plan, None
    passes = tuple(
        tuple(group for group in groups if followed & {m.client for m in group.members})
        for groups in plan.passes
    )
    rows = [
        row
        for row, source in enumerate(event.mixed.sources)
        if any(
            {m.client for m in source.members} <= {m.client for m in group.members}
            for group in passes[source.index]
        )
    ]
    return replace(plan, passes=passes), rows


def _rows(gradient: Tensor, groups: list[int] | None, batch: int) -> Tensor:
    if groups is not None:
        gradient = torch.cat([gradient[row * batch : (row + 1) * batch] for row in groups])
    return gradient.detach().cpu()


def _detached(upload: Upload) -> Upload:
    smashed = [None if t is None else t.detach().cpu() for t in upload.smashed]
    if isinstance(upload.labels, Tensor):
        return Upload(smashed, upload.labels.detach().cpu())
    return Upload(smashed, [None if t is None else t.detach().cpu() for t in upload.labels])
