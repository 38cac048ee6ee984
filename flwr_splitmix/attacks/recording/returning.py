"""The gradients that a client of the U shape returns for the trunk's outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flwr_splitmix.hiding import Hiding, SentBatch


def returned_gradients(
    hiding: Hiding, outputs: Sequence[Tensor], sent_batch: SentBatch
) -> list[Tensor]:
    """Return the gradients that a client returns for the trunk's outputs in a training step.

    Parameters
    ----------
    hiding
        The client's, attached to it.
    outputs
        (b, T, d), one for each message of `sent_batch`.

    Returns
    -------
    One gradient (b, T, d) per output.
    """
    leaves = [output.detach().clone().requires_grad_() for output in outputs]
    recovered = hiding.recover(leaves, sent_batch)
    hidden = recovered.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(hiding.loss(hidden, sent_batch), hidden)
    perturbed = hiding.perturb(gradient, hidden.detach(), sent_batch)
    return hiding.returned(torch.autograd.grad(recovered, leaves, perturbed), sent_batch)
