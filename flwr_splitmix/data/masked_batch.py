"""A batch of a client of the U shape: texts with their padding's mask, or other inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.examples import Example

NOTHING = -1
"""Token id beyond a text's end, where it is shorter than its batch."""


@dataclass(frozen=True)
class MaskedBatch:
    """Texts padded to a common length, or other inputs of one shape, such as images.

    Parameters
    ----------
    inputs
        Token ids, int64 (b, T), 0 where the mask is 0; or inputs (b, ...), floating or of more
        than two dimensions.
    mask
        int64 (b, T), 1 for a token, 0 for padding; tokens come first. Of inputs without padding
        (b, 1), 1.
    labels
        int64 (b,), the class of each text; or int64 (b, T), the text's tokens, with -100 where
        there is no loss: the logits of one position are scored on the label of the next.
    """

    inputs: Tensor
    mask: Tensor
    labels: Tensor

    @classmethod
    def of(cls, example: Example, device: torch.device) -> MaskedBatch:
        """Make a batch from an example of a `TextSet` or another data set, on a device.

        Raises
        ------
        ExamplesError
            If token ids are negative, and not `NOTHING`, which marks padding, or if padding is not
            at the end.
        """
        inputs, labels = example
        if not holds_ids(inputs):
            mask = torch.ones(len(inputs), 1, dtype=torch.int64, device=device)
            return cls(inputs.to(device), mask, labels.to(device))
        ids = inputs.long()  # the largest of an unsigned type would count as -1
        _check_ids(ids)
        mask = (ids != NOTHING).long()
        return cls(ids.clamp(min=0).to(device), mask.to(device), labels.to(device))


def _check_ids(ids: Tensor) -> None:
    """Raise ExamplesError unless ids (b, T) are >= 0, but for `NOTHING` at the end of rows."""
    if ids.numel() and int(ids.min()) < NOTHING:
        raise ExamplesError(
            "token ids are negative; rows of a table and series must be floating: .float()"
        )
    padded = ids == NOTHING
    if bool((padded[:, :-1] & ~padded[:, 1:]).any()):
        raise ExamplesError(
            f"token ids have {NOTHING}, which marks padding, before others; padding comes last. A "
            "missing value needs an id >= 0 of its own (pandas' cat.codes + 1); rows of a table "
            "and series must be floating: .float()"
        )


def holds_ids(inputs: Tensor) -> bool:
    """Return whether a batch's inputs are token ids (b, T), and not images or the like."""
    return inputs.dim() == 2 and not (inputs.is_floating_point() or inputs.is_complex())
