"""One round of the U shape: its steps, and the state passed from round to round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flwr_splitmix.events import StepDone
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.steps.calibrations import Calibrations
from flwr_splitmix.server.steps.position import StepPosition
from flwr_splitmix.server.steps.ushape import TrunkSteps
from flwr_splitmix.server.warnings.clients import ClientWarnings
from flwr_splitmix.server.warnings.frozen_weights import FrozenWeights


@dataclass
class UShapeState:
    """The state that the rounds of one run of the U shape pass on to each other.

    Parameters
    ----------
    client_warnings
        Warnings about clients' data and states, each once a run.
    calibrations
        The steps for which clients have calibrated.
    frozen
        The frozen weights of clients, as far as they are known.
    scores
        Warnings about clients' scores that have been logged, each once a run.
    """

    client_warnings: ClientWarnings
    calibrations: Calibrations = field(default_factory=Calibrations)
    frozen: FrozenWeights = field(default_factory=FrozenWeights)
    scores: SeenKeys = field(default_factory=SeenKeys)


class UShapeRound:
    """Takes the steps of one round.

    Parameters
    ----------
    steps
        Takes each step, with the clients of the round.
    num_steps
        The number of the round's steps.
    """

    def __init__(self, steps: TrunkSteps, server_round: int, num_steps: int) -> None:
        self._steps, self._trunk = steps, steps.training.trunk
        self._server_round, self._num_steps = server_round, num_steps

    def take(self, on_step: Callable[[StepDone], None]) -> int:
        """Take the round's steps and return their number.

        Clients that must calibrate (MixGuard, Stage I) do so first, in parallel.

        Parameters
        ----------
        on_step
            Called with every step.

        Raises
        ------
        LinkError
            If too few clients are left.
        """
        self._trunk.warn_of_unknown_weights()
        self._steps.calibrate()
        for number in range(self._num_steps):
            position = StepPosition.within(self._server_round, number, self._num_steps)
            on_step(self._steps.take(position))
        return self._num_steps

    def finish(self) -> None:
        """Deliver the gradients still owed after the last step.

        Raises
        ------
        LinkError
            If too few clients are left.
        """
        server_round = self._server_round
        self._steps.finish(StepPosition(server_round, self._num_steps, server_round))
        self._trunk.warn_of_skipped_steps(server_round)
