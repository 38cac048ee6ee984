"""Whether weights and buffers that are kept between rounds have the same shapes all along."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.weights import differences


class KeptShapes:
    """The shapes of what is kept of a segment, at the start of a round.

    Parameters
    ----------
    name
        Name of the segment, for messages.
    tensors
        Weights and buffers by name.
    """

    def __init__(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self.name = name
        self._began = {
            key: torch.empty(tensor.shape, device="meta") for key, tensor in tensors.items()
        }

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ClientError if names or shapes have changed since the start of the round.

        Another process could not take up such a state, nor a server average it.
        """
        if changed := differences(self._began, tensors):
            raise ClientError(
                f"the shapes within the {self.name} have changed in this round: {changed}; what "
                "is kept between rounds needs one shape: give the buffer a fixed size, or register "
                "it with persistent=False; if its first batch sets the size, run one through the "
                f"{self.name} before it is given to a client"
            )
