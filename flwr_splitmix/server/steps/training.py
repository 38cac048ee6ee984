"""The parts and settings common to the steps of a run in the L shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr_splitmix.links import Clients
from flwr_splitmix.mixers import Mixed, Mixer, Plan, Upload
from flwr_splitmix.mixers.checked_mixer import Gradients, gradients_of, merged
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.server.intake.split import UploadIntake
from flwr_splitmix.server.segments.cut_gradients import Learned
from flwr_splitmix.server.segments.upper import TrainedUpper
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.server.steps.position import StepPosition


@dataclass(frozen=True, kw_only=True)
class SplitTraining:
    """The parts and settings common to all steps of a run.

    Parameters
    ----------
    seed, num_rounds
        The run's seed and number of rounds.
    require
        Raises LinkError if too few clients are left.
    """

    mixer: Mixer
    upper: TrainedUpper
    intake: UploadIntake
    pace: Pace
    min_nodes: int
    seed: int
    num_rounds: int
    require: Callable[[Clients], None]

    def upper_seed(self, position: StepPosition) -> int:
        """Return the seed for the upper segment's dropout and the like."""
        return derive_seed(self.seed, "upper", position.server_round, position.number)

    def merge(self, uploads: Mapping[int, Upload], plan: Plan) -> Mixed:
        """Mix uploads for the upper segment; raises EmptyMixtureError if there is no patch."""
        num_classes, device = self.upper.num_classes, self.upper.device
        return merged(self.mixer, uploads, plan, num_classes=num_classes, device=device)

    def split(self, result: Learned, mixed: Mixed, plan: Plan) -> Gradients:
        """Return each client's gradient of what it has uploaded."""
        return gradients_of(self.mixer, result.gradient, mixed, plan, result.without_gradient)
