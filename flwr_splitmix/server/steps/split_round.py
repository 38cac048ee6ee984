"""One round of the L shape: its plans and steps, and the state passed from round to round."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from flwr_splitmix.events import StepDone
from flwr_splitmix.links import Clients
from flwr_splitmix.mixers import EmptyMixtureError
from flwr_splitmix.mixers.elsewhere import MixedElsewhere
from flwr_splitmix.server.naming import name_clients
from flwr_splitmix.server.steps.micro_batches import MicroBatchSteps
from flwr_splitmix.server.steps.part_count import PartCount
from flwr_splitmix.server.steps.planner import Planner
from flwr_splitmix.server.steps.position import StepPosition
from flwr_splitmix.server.steps.split import SplitSteps, WholeBatchSteps
from flwr_splitmix.server.steps.training import SplitTraining
from flwr_splitmix.server.warnings.clients import ClientWarnings
from flwr_splitmix.server.warnings.mixer import MixerWarnings
from flwr_splitmix.server.warnings.tally import RoundTally
from flwr_splitmix.words import counted


@dataclass
class LShapeState:
    """The state that the rounds of one run of the L shape pass on to each other.

    Parameters
    ----------
    mixer_warnings
        Warnings about the mixer and its plans, each once a run.
    client_warnings
        Warnings about clients' data and states, each once a run.
    parts
        The number of parts of the clients' batches.
    seconds
        By client index, the seconds of a step of its last round.
    """

    mixer_warnings: MixerWarnings
    client_warnings: ClientWarnings
    parts: PartCount
    seconds: dict[int, float] = field(default_factory=dict)


class SplitRound:
    """Plans and takes the steps of one round; `begin` makes it.

    Parameters
    ----------
    steps
        Takes the steps, with the clients of the round.
    planner
        Draws the round's plans.
    state
        The run's.

    Attributes
    ----------
    stop_reason
        Why the run ends after this round: too few clients have privacy budget left; otherwise "".
    """

    def __init__(self, steps: SplitSteps, planner: Planner, state: LShapeState) -> None:
        self.stop_reason = ""
        self._steps, self._clients, self._training = steps, steps.clients, steps.training
        self._planner, self._state, self._mixer_warnings = planner, state, state.mixer_warnings
        self._tally = RoundTally(mixes=planner.mixer.min_members > 1)

    @classmethod
    def begin(
        cls,
        training: SplitTraining,
        clients: Clients,
        planner: Planner,
        state: LShapeState,
    ) -> SplitRound:
        """Begin a round, with warnings about its plans.

        Parameters
        ----------
        state
            The run's. It fixes for the round the number of parts of the clients' batches, and
            forms groups of similar speed.
        """
        training.upper.warn_of_unknown_weights()
        training.intake.begin_round(clients)
        mixer_warnings, parts = state.mixer_warnings, state.parts
        mixer_warnings.on_few(planner.server_round, len(clients.nodes))
        mixer_warnings.on_leftover(len(clients.nodes))
        mixer_warnings.on_clients(clients, planner.shape)
        training.mixer.group_within(training.pace.classes(state.seconds))
        parts.begin_round(planner.shape.batch, overlaps=clients.overlaps)
        if parts.parts > 1:
            return cls(MicroBatchSteps(training, clients, parts), planner, state)
        return cls(WholeBatchSteps(training, clients), planner, state)

    def take(self, on_step: Callable[[StepDone], None]) -> int:
        """Take the round's steps and return their number.

        Clients whose privacy budget is spent take part in no further step; if fewer than
        `min_nodes` others are left, the round ends early, and `stop_reason` says why.

        Parameters
        ----------
        on_step
            Called with every step in which something was learned.

        Raises
        ------
        LinkError
            If too few clients are left.
        """
        clients, training = self._clients, self._training
        num_steps = self._planner.length.steps
        for number in range(num_steps):
            spent = training.intake.spent_clients
            members = [client for client in clients.alive if client not in spent]
            if why := _why_spent(clients, members, spent, training.min_nodes):
                self.stop_reason = why
                return number
            event = self._step(number, members)
            if event is not None:
                on_step(event)
        return num_steps

    def _step(self, number: int, members: list[int]) -> StepDone | None:
        """Take a step with those of `members` that are not too slow; None if it was empty."""
        training, server_round = self._training, self._planner.server_round
        least = max(training.min_nodes, training.mixer.min_members)
        members = training.pace.members(self._clients, members, least)
        plan = self._planner.plan(members, number)
        self._tally.add(members, plan)
        position = StepPosition.within(server_round, number, self._planner.length.steps)
        try:
            event = self._steps.take(position, plan)
        except EmptyMixtureError:  # the clients that remain had no patch in this step
            self._tally.add_empty()
            return None
        if number == 0 and not isinstance(training.mixer, MixedElsewhere):
            self._mixer_warnings.on_uploads(event.uploads, plan)
        self._tally.add_gradients(plan, event.gradients)
        return event

    def finish(self, num_steps: int) -> None:
        """Deliver the gradients still owed after the last of `num_steps` steps, and warn of plans.

        Raises
        ------
        LinkError
            If too few clients are left.
        """
        clients, server_round = self._clients, self._planner.server_round
        self._steps.finish(num_steps)
        self._training.upper.warn_of_skipped_steps(server_round)
        self._training.intake.end_round(clients)
        self._mixer_warnings.on_plans(server_round, self._tally, clients.alive)
        step_seconds = {c: clients.seconds[c] / max(num_steps, 1) for c in clients.alive}
        self._state.seconds |= step_seconds


def _why_spent(
    clients: Clients, members: Collection[int], spent: Collection[int], min_nodes: int
) -> str:
    """Return why a round cannot continue for want of privacy budget; "" if it can.

    Parameters
    ----------
    members, spent
        The clients that remain, and those whose budget is spent. Which nodes behind mixing groups
        have spent theirs is not known, only how many.
    """
    if spent and len(members) < min_nodes:
        return f"the privacy budget of {name_clients(sorted(spent))} is spent"
    if clients.spent_nodes and len(clients.nodes) - clients.spent_nodes < max(min_nodes, 2):
        return f"the privacy budget of {counted(clients.spent_nodes, 'client')} is spent"
    return ""
