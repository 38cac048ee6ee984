"""The steps of a round in the L shape: exchange, mix, learn, and return gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from flwr_splitmix.events import StepDone, StepResult
from flwr_splitmix.links import Clients
from flwr_splitmix.mixers import Mixed, Plan, Upload
from flwr_splitmix.mixers.checked_mixer import Gradients
from flwr_splitmix.seeding import generator
from flwr_splitmix.server.steps.arrival import GroupsOnArrival
from flwr_splitmix.server.steps.position import StepPosition
from flwr_splitmix.server.steps.training import SplitTraining
from flwr_splitmix.server.steps.whole_batches import WholeBatches, deliveries


class SplitSteps(ABC):
    """Takes the steps of one round.

    Parameters
    ----------
    clients
        The clients of the round.
    """

    def __init__(self, training: SplitTraining, clients: Clients) -> None:
        self.training = training
        self.clients = clients

    @abstractmethod
    def take(self, position: StepPosition, plan: Plan) -> StepDone:
        """Take a step.

        Raises
        ------
        EmptyMixtureError
            If no client had a patch, so that no step was taken.
        LinkError
            If too few clients are left.
        """

    @abstractmethod
    def finish(self, steps: int) -> None:
        """Deliver the gradients still owed to clients, after the last of `steps` steps."""


class WholeBatchSteps(SplitSteps):
    """Steps of one exchange each: the last step's gradient travels with the plan of the next."""

    def __init__(self, training: SplitTraining, clients: Clients) -> None:
        super().__init__(training, clients)
        self._batches = WholeBatches(clients, training.intake, training.require)

    def take(self, position: StepPosition, plan: Plan) -> StepDone:
        """Exchange once and learn from the uploads."""
        pace = self.training.pace
        came = self._batches.take(
            position.number,
            position.progress,
            plan,
            on_arrival=pace.notices_arrival,
            patience=pace.patience(self.training.min_nodes),
        )
        if pace.on_arrival:
            return self._learn_on_arrival(position, plan, came)
        return self._learn(position, plan, dict(sorted(came, key=lambda pair: pair[0])))

    def finish(self, steps: int) -> None:
        """Deliver the last gradients."""
        self._batches.finish(steps)

    def _learn(self, position: StepPosition, plan: Plan, uploads: Mapping[int, Upload]) -> StepDone:
        training = self.training
        mixed = training.merge(uploads, plan)
        rng = generator(training.seed, "order", position.server_round, position.number)
        result = training.upper.learn(
            mixed, position.progress, training.num_rounds, training.upper_seed(position), rng
        )
        gradients = training.split(result, mixed, plan)
        self._batches.owed = gradients
        return _done(position, plan, uploads, gradients, mixed, result)

    def _learn_on_arrival(
        self, position: StepPosition, plan: Plan, came: Iterable[tuple[int, Upload]]
    ) -> StepDone:
        groups = GroupsOnArrival(self.training, position, plan)

        def deliver(gradients: Gradients) -> None:
            number, progress, last = position.number + 1, position.progress, position.last
            self.clients.post("step", deliveries(number, progress, gradients, last=last))

        owed = groups.learn(came, deliver)
        mixed, result = groups.result()
        self._batches.owed = owed
        return _done(position, plan, groups.uploads, groups.gradients, mixed, result)


def _done(
    position: StepPosition,
    plan: Plan,
    uploads: Mapping[int, Upload],
    gradients: Gradients,
    mixed: Mixed,
    result: StepResult,
) -> StepDone:
    """Return a step as observers get it."""
    return StepDone(
        position.server_round,
        position.number,
        uploads,
        gradients,
        loss=result.loss,
        plan=plan,
        mixed=mixed,
        result=result,
    )
