"""The calibration of a hiding on the trunk's outputs for public texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.ushape.messenger import Messenger
from flwr_splitmix.hiding import SentBatch
from flwr_splitmix.words import counted


class PublicCalibration:
    """Sends a client's public texts, and lets its hiding learn from the answers.

    Parameters
    ----------
    messenger
        Makes the messages.
    """

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        self._hiding = messenger.hiding
        self._sent: list[SentBatch] = []
        self._steps_due = self._steps_taken = 0  # steps before the first batch

    def begin_round(self) -> int:
        """Return how many steps are due before a round's first batch."""
        self.forget()
        self._steps_due, self._steps_taken = self._hiding.calibration_steps, 0
        return self._steps_due

    def forget(self) -> None:
        """Drop public texts that await their answer."""
        self._sent = []

    def send(self) -> dict[str, Any]:
        """Return the next public texts to send.

        Returns
        -------
        {"public": [a group of messages and its mask, ...]}.

        Raises
        ------
        ClientError
            If there are none.
        """
        self._messenger.ends.segments.eval()
        with torch.no_grad():
            batch = self._hiding.public_batch()
            if batch is None:
                raise ClientError("this client has no public texts to send")
            sent = self._messenger.messages_of(batch, "public inputs")
            self._sent = self._hiding.public_groups(sent)
        return {"public": [group.outgoing() for group in self._sent]}

    def take_step(self, public: Sequence[Sequence[Tensor]]) -> None:
        """Take one of the steps before the first batch; `public` is as for `learn`."""
        self._learn(public, self._steps_taken)
        self._steps_taken += 1

    def learn(self, public: Sequence[Sequence[Tensor]]) -> None:
        """Learn alongside training.

        Parameters
        ----------
        public
            The trunk's output for each message of each group, (b, T, d).

        Raises
        ------
        ClientError
            If they do not belong to what was sent.
        """
        self._learn(public, None)

    def _learn(self, public: Sequence[Sequence[Tensor]], step: int | None) -> None:
        groups, self._sent = self._sent, []
        if not groups or len(public) != len(groups):
            raise ClientError("the server answers with public texts that were not sent")
        pairs = zip(groups, public, strict=True)
        checked_outputs = [self._messenger.outputs_for(group, outputs) for group, outputs in pairs]
        self._hiding.learn_public(checked_outputs, groups, step)

    def check_done(self) -> None:
        """Raise ClientError if steps of calibration are left before the first batch.

        The hiding's treatment of private texts may depend on them, as MixGuard's noise on gradients
        does.
        """
        if (
            missing_steps := min(
                self._steps_due - self._steps_taken, self._hiding.calibration_steps
            )
        ) > 0:
            raise ClientError(
                f"this client calibrates for {counted(missing_steps, 'more step')} before it sends "
                "private texts: the server must do them (encode_public, decode_public), or the "
                "client be made with calibration_epochs=0"
            )
