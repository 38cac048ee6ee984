"""What is known of a run's clients."""

from __future__ import annotations

from flwr.app import ArrayRecord

from flwr_splitmix.observers import UnfinishedRounds
from flwr_splitmix.server.intake.epsilons import ReportedEpsilons
from flwr_splitmix.server.intake.replies import ReplyIntake
from flwr_splitmix.server.nodes.participants import Participants


class KnownClients:
    """Who takes part, the check of what clients return, and the epsilons that they report.

    Parameters
    ----------
    unfinished
        The rounds that clients began and did not finish.

    Attributes
    ----------
    participants
        Who is drawn, who has no data, who has trained.
    epsilons
        What clients report to have spent; an observer.
    intake
        The check of a round's replies.
    """

    def __init__(self, unfinished: UnfinishedRounds) -> None:
        self.participants = Participants()
        self.epsilons = ReportedEpsilons(unfinished)
        self.intake = ReplyIntake(ArrayRecord())

    def begin(self, initial: ArrayRecord) -> None:
        """Begin a run, whose first lower segment is given; empty if clients have their own."""
        self.participants.forget()
        self.epsilons.forget()
        self.intake = ReplyIntake(initial)
