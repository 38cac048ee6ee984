"""The steps of a round in the L shape: exchange, mix, learn, and return gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flwr_splitmix.events import StepDone
from flwr_splitmix.links import Clients
from flwr_splitmix.mixers import Mixer, Plan, Upload
from flwr_splitmix.mixers.hooks import Gradients, gradients_of, merged
from flwr_splitmix.seeding import derive_seed, generator
from flwr_splitmix.server.intake.split import UploadIntake
from flwr_splitmix.server.segments.upper import ServerSegment
from flwr_splitmix.server.steps.arrival import GroupsOnArrival, deliveries
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.server.steps.whole_batches import WholeBatches, accepted


@dataclass(frozen=True)
class Place:
    """A step's position in its run.

    Parameters
    ----------
    number
        The step's number in its round, from 0.
    progress
        Global progress in rounds, for the schedules.
    """

    server_round: int
    number: int
    progress: float


@dataclass(frozen=True)
class Training:
    """What all steps of a run share.

    Parameters
    ----------
    seed, num_rounds
        The run's seed and number of rounds.
    require
        Raises LinkError if too few clients are left.
    """

    mixer: Mixer
    upper: ServerSegment
    uploads: UploadIntake
    pace: Pace
    min_nodes: int
    seed: int
    num_rounds: int
    require: Callable[[Clients], None]

    def upper_seed(self, place: Place) -> int:
        """Return the seed for the upper segment's dropout and the like."""
        return derive_seed(self.seed, "upper", place.server_round, place.number)


class Steps(ABC):
    """Takes the steps of one round.

    Parameters
    ----------
    clients
        The clients of the round.
    """

    def __init__(self, training: Training, clients: Clients) -> None:
        self.training = training
        self.clients = clients

    @abstractmethod
    def take(self, place: Place, plan: Plan) -> StepDone:
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

    def accepted(
        self, replies: Iterable[tuple[int, Mapping[str, Any]]], plan: Plan
    ) -> Iterator[tuple[int, Upload]]:
        """Yield the valid uploads among the replies to a plan; other senders leave the round."""
        own = self.training
        return accepted(self.clients, own.uploads, replies, plan, own.require)


class WholeBatchSteps(Steps):
    """Steps of one exchange each: the last step's gradient travels with the plan of the next."""

    def __init__(self, training: Training, clients: Clients) -> None:
        super().__init__(training, clients)
        self._batches = WholeBatches(clients, training.uploads, training.require)

    def take(self, place: Place, plan: Plan) -> StepDone:
        """Exchange once and learn from the uploads."""
        pace = self.training.pace
        came = self._batches.take(
            place.number,
            place.progress,
            plan,
            on_arrival=pace.notices_arrival,
            patience=pace.patience(self.training.min_nodes),
        )
        if pace.on_arrival:
            return self._learn_on_arrival(place, plan, came)
        return self._learn(place, plan, dict(sorted(came, key=lambda pair: pair[0])))

    def finish(self, steps: int) -> None:
        """Deliver the last gradients."""
        self._batches.finish(steps)

    def _learn(self, place: Place, plan: Plan, uploads: Mapping[int, Upload]) -> StepDone:
        own = self.training
        mixed = merged(
            own.mixer,
            uploads,
            plan,
            num_classes=own.upper.num_classes,
            device=own.upper.device,
        )
        rng = generator(own.seed, "order", place.server_round, place.number)
        result = own.upper.learn(mixed, place.progress, own.num_rounds, own.upper_seed(place), rng)
        gradients = gradients_of(own.mixer, result.gradient, mixed, plan, result.without_gradient)
        self._batches.owed = gradients
        return StepDone(
            place.server_round,
            place.number,
            uploads,
            gradients,
            loss=result.loss,
            plan=plan,
            mixed=mixed,
            result=result,
        )

    def _learn_on_arrival(
        self, place: Place, plan: Plan, came: Iterable[tuple[int, Upload]]
    ) -> StepDone:
        own = self.training
        groups = GroupsOnArrival(
            plan, own.mixer, own.upper, place.progress, own.num_rounds, own.upper_seed(place)
        )

        def deliver(gradients: Gradients) -> None:
            self.clients.post("step", deliveries(place.number + 1, place.progress, gradients))

        owed = groups.learn(came, deliver)
        mixed, result = groups.result()
        self._batches.owed = owed
        return StepDone(
            place.server_round,
            place.number,
            groups.uploads,
            groups.gradients,
            loss=result.loss,
            plan=plan,
            mixed=mixed,
            result=result,
        )
