"""A U-shaped client's messages for a batch, and its reading of the trunk's outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.finite import check_finite
from flwr_splitmix.clients.guards.restrained import restrained
from flwr_splitmix.clients.requests import check_received
from flwr_splitmix.clients.ushape.checked_methods import checked_hidden, checked_sent
from flwr_splitmix.clients.ushape.ends import Ends
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import Hiding, SentBatch
from flwr_splitmix.segments.batch_norm import enough_values
from flwr_splitmix.segments.shape_errors import out_of_memory


class Messenger:
    """Makes a batch's messages by the client's hiding, and reads what comes back.

    Parameters
    ----------
    hiding
        Makes the messages and reads the answers.
    ends
        Head and tail.
    device
        Where they are.
    """

    def __init__(self, hiding: Hiding, ends: Ends, device: torch.device) -> None:
        self.hiding = hiding
        self.ends = ends
        self.device = device

    @property
    def may_name_data(self) -> bool:
        """Whether an error may reveal data: with an epsilon it would itself be a release."""
        return not self.hiding.accounts

    def messages_of(self, batch: MaskedBatch, subject: str = "inputs") -> SentBatch:
        """Return the checked messages of a batch.

        Parameters
        ----------
        subject
            Name of its inputs, for messages.

        Raises
        ------
        ClientError
            If the inputs do not fit the head, or if the messages have NaN or infinite numbers.
            These are not searched for where errors must not reveal data; nor on an accelerator,
            which would have to be waited for.
        """
        try:
            with enough_values("head"):
                sent = checked_sent(self.hiding.obfuscate(batch))
        except ClientError:
            raise
        except (RuntimeError, TypeError, AssertionError) as error:
            if not out_of_memory(error):
                with restrained(f"{subject} do not fit the head", hides=not self.may_name_data):
                    self.ends.explain(batch, subject)
            raise
        if self.device.type == "cpu" and self.may_name_data:
            messages = [message.detach() for message in sent.messages]
            check_finite("head", self.ends.segments["head"], batch.inputs, *messages)
        return sent

    def outputs_for(self, sent: SentBatch | None, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the trunk's outputs for messages, checked and on the client's device.

        Parameters
        ----------
        sent
            The batch that was sent; None if none was.
        outputs
            (b, T, d) of each message.

        Raises
        ------
        ClientError
            If they do not belong to these messages, or have NaN, infinite or very large numbers.
        """
        if sent is None:
            raise ClientError("the server decodes what this client has not encoded")
        shapes = [tuple(output.shape) for output in outputs]
        if shapes != [tuple(message.shape) for message in sent.messages]:
            raise ClientError(f"the server answers with outputs of shapes {shapes}")
        check_received("the trunk's output of message", outputs, bounded=True)
        return [output.to(self.device) for output in outputs]

    def recovered(self, outputs: Sequence[Tensor], sent: SentBatch) -> Tensor:
        """Return the hidden states (b, T, d) that the hiding reads from checked outputs.

        Raises
        ------
        ClientError
            If a hiding's own `recover` returns something else.
        """
        return checked_hidden(self.hiding.recover(outputs, sent), self.hiding.side.width)
