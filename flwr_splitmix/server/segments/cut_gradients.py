"""Gradients at the cut, freed of numbers that would end the rounds of the clients they go to."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from flwr_splitmix.events import StepResult
from flwr_splitmix.finite import all_finite, largest_magnitude
from flwr_splitmix.limits import LARGEST
from flwr_splitmix.words import counted, verb

log = logging.getLogger("flwr.splitmix")


@dataclass(frozen=True)
class Learned(StepResult):
    """A step's result, and the groups that have no gradient.

    Parameters
    ----------
    without_gradient
        The groups whose gradient has no finite numbers, or numbers beyond `LARGEST`, for which
        clients with a `max_epsilon` would leave the round; their clients get none. Empty if finding
        out would mean waiting for an accelerator.
    """

    without_gradient: tuple[int, ...] = ()


class CutGradients:
    """Removes from gradients what clients would refuse, and counts what was too large.

    Parameters
    ----------
    device
        That of the gradients.
    """

    def __init__(self, device: torch.device) -> None:
        self._huge = torch.zeros((), dtype=torch.int64, device=device)

    def clean(self, gradient: Tensor, groups: int, *, waits: bool) -> tuple[int, ...]:
        """Set to 0, in place, what is not finite, and gradients of groups that are too large.

        Parameters
        ----------
        gradient
            (groups * b, prefix + N, d), all groups one below the other.
        waits
            Whether this may wait for the device.

        Returns
        -------
        The groups that have no gradient; none without waiting.
        """
        without: tuple[int, ...] = ()
        if waits and not all_finite([gradient]):
            without = tuple(
                group
                for group, rows in enumerate(gradient.chunk(groups))
                if not all_finite([rows]) and not bool((rows.isfinite() & (rows != 0)).any())
            )
        gradient.nan_to_num_(0.0, 0.0, 0.0)
        if not waits or _beyond(gradient):
            huge = torch.stack([_beyond(rows) for rows in gradient.chunk(groups)])
            samples = huge.repeat_interleave(len(gradient) // groups)
            gradient.masked_fill_(samples[:, None, None], 0.0)
            self._huge = self._huge + huge.sum()
            if waits:
                without += tuple(huge.nonzero().flatten().tolist())
        return without

    def warn(self, server_round: int) -> None:
        """Log how many groups' gradients of a round were too large, and count from 0 again."""
        huge, self._huge = int(self._huge), torch.zeros_like(self._huge)
        if huge:
            log.warning(
                "round %d: %s of the smashed data had numbers beyond %g and %s not sent: the "
                "learning rate may be too high, or a client's upload absurd",
                server_round,
                counted(huge, "gradient"),
                LARGEST,
                verb(huge, "were"),
            )


def _beyond(gradient: Tensor) -> Tensor:
    return largest_magnitude(gradient) > LARGEST
