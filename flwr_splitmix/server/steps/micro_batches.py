"""Full-duplex steps: a batch is uploaded in parts, each processed as soon as it arrives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from flwr_splitmix.events import StepDone, StepResult
from flwr_splitmix.links import Clients
from flwr_splitmix.mixers import EmptyMixtureError, Mixed, Plan, Upload
from flwr_splitmix.mixers.checked_mixer import Gradients
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.server.steps.part_count import PartCount, StepSeconds
from flwr_splitmix.server.steps.parted_step import PartedStep
from flwr_splitmix.server.steps.position import StepPosition
from flwr_splitmix.server.steps.split import SplitSteps
from flwr_splitmix.server.steps.training import SplitTraining
from flwr_splitmix.server.steps.whole_batches import accepted


class MicroBatchSteps(SplitSteps):
    """Steps whose batch is cut into parts; both segments' optimizers step once for all parts.

    The calls for all parts are queued at once, and each part's gradients as soon as the server has
    processed it: while a client uploads one part, the server processes an earlier one and returns
    gradients of parts already processed. Clients answer all calls in order.

    Parameters
    ----------
    count
        The number of parts.
    """

    def __init__(self, training: SplitTraining, clients: Clients, count: PartCount) -> None:
        super().__init__(training, clients)
        self.count = count
        self._deliveries = 0
        self._learned: tuple[float, float] | None = None

    def take(self, position: StepPosition, plan: Plan) -> StepDone:
        """Exchange the parts and learn from them one after another."""
        parts = self.count.parts
        samples = plan.shape.batch // parts
        owed, self._deliveries = self._deliveries, 0
        planned = plan.clients
        shares = {c: plan.for_node(c) for c in self.clients.alive if c in planned}
        for part in range(parts):
            self.clients.queue("encode_part", _part_calls(position, shares, part, parts))
        seconds = StepSeconds(parts)
        began = time.perf_counter()
        self._step_optimizer()
        seconds.server += time.perf_counter() - began
        for _ in range(owed):
            self.clients.answered()
        step = PartedStep(plan, parts)
        for part in range(parts):
            part_plan = plan.part(part * samples, samples)
            before = dict(self.clients.seconds)
            replies = self.clients.answered()
            seconds.uploaded(part, before, self.clients.seconds)
            began = time.perf_counter()
            accepted_pairs = accepted(
                self.clients,
                self.training.intake,
                replies.items(),
                part_plan,
                self.training.require,
            )
            uploads = dict(accepted_pairs)
            gradients = self._learn(position, part_plan, uploads, part, step)
            self._deliver(position, part, uploads, gradients)
            seconds.server += time.perf_counter() - began
        if step.groups:
            self._learned = (step.groups, position.progress)
        if self.count.measures:
            self._measure(seconds)
        return step.done(position.server_round, position.number)

    def finish(self, steps: int) -> None:
        """Wait until all gradients have been delivered."""
        self._step_optimizer()
        while self._deliveries:
            self._deliveries -= 1
            self.clients.answered()
        self.training.require(self.clients)

    def _step_optimizer(self) -> None:
        """Take the upper segment's last optimizer step while clients start the next batch."""
        if self._learned is not None:
            groups, progress = self._learned
            self._learned = None
            self.training.upper.finish_parts(groups, progress, self.training.num_rounds)

    def _learn(
        self,
        position: StepPosition,
        part_plan: Plan,
        uploads: Mapping[int, Upload],
        part: int,
        step: PartedStep,
    ) -> Gradients:
        """Learn from a part and return its gradients; empty if there is nothing to mix."""
        mixed: Mixed | None = None
        result: StepResult | None = None
        gradients: Gradients = {}
        try:
            mixed = self.training.merge(uploads, part_plan)
        except EmptyMixtureError:  # no remaining client has a patch in this step
            pass
        else:
            seed = self.training.upper_seed(position)
            seed = derive_seed(seed, "part", part) if part else seed
            first = not step.groups
            result = self.training.upper.learn_part(mixed, step.plan.shape.batch, seed, first=first)
            gradients = self.training.split(result, mixed, part_plan)
        step.add(uploads, gradients, mixed, result)
        return gradients

    def _deliver(
        self, position: StepPosition, part: int, uploads: Mapping[int, Upload], gradients: Gradients
    ) -> None:
        common = {"number": position.number, "part": part, "last": position.last}
        payloads = {client: {**common, "gradient": gradients.get(client)} for client in uploads}
        self.clients.queue("learn_part", payloads)
        self._deliveries += 1

    def _measure(self, seconds: StepSeconds) -> None:
        """Wait for the deliveries; the last one measures how long gradients take to arrive."""
        while self._deliveries:
            self._deliveries -= 1
            before = dict(self.clients.seconds)
            self.clients.answered()
            seconds.delivered(before, self.clients.seconds)
        self.count.measured(seconds)


def _part_calls(
    position: StepPosition, shares: Mapping[int, Any], part: int, parts: int
) -> dict[int, Mapping[str, Any]]:
    """Return the calls for one part, by client; `shares` is each client's share of the plan."""
    common = {
        "number": position.number,
        "progress": position.progress,
        "part": part,
        "parts": parts,
    }
    return {client: {**common, "plan": plan} for client, plan in shares.items()}
