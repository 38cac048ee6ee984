"""Whether a hiding can work for its client: with its head, its inputs, its batches, its node."""

from __future__ import annotations

from torch import nn

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.masked_batch import MaskedBatch, holds_ids
from flwr_splitmix.hiding import HIDINGS, Hiding
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.words import listed


def check_head_learns(hiding: Hiding, head: nn.Module) -> None:
    """Check that a hiding that works by training the head has one that learns.

    Raises
    ------
    ClientError
        If the head learns nothing.
    """
    if hiding.teaches_head and not any(p.requires_grad for p in head.parameters()):
        raise ClientError(
            f"{type(hiding).__name__} works only by training the head, and this head learns "
            "nothing: take learns='all' and a head with parameters that require gradients, or "
            "another hiding"
        )


def check_public(hiding: Hiding, policy: NodePolicy) -> None:
    """Check that a node's policy allows the public texts of a hiding, as it does benchmark data.

    The run chooses these texts, and could name the node's own. They leave plain, or in what
    can be read: calibration sends them, and MixGuard mixes them with training texts.

    Raises
    ------
    ClientError
        If it does not, and the hiding has some, or sends some.
    """
    sends = type(hiding).public_batch is not Hiding.public_batch
    if not policy.benchmark and (sends or hiding.public is not None):
        raise ClientError(
            "this node sends no public texts without noise (allow-benchmark = false), and "
            f"{type(hiding).__name__} sends some: its operator can allow it "
            "(allow-benchmark = true), or the run take a strategy without public texts, such as "
            "NaiveMixSL"
        )


def check_batches(hiding: Hiding, first: MaskedBatch, batches: Batches) -> None:
    """Check that a client's batches are of inputs, and of as many, as its hiding needs.

    Parameters
    ----------
    first
        The first examples.
    batches
        All of them.

    Raises
    ------
    ClientError
        If the hiding is for texts and the inputs are not texts, or batches are too small for it.
    """
    texts = holds_ids(first.inputs)
    if hiding.texts_only and not texts:
        others = [kind.__name__ for kind in HIDINGS if not kind.texts_only]
        raise ClientError(
            f"{type(hiding).__name__} hides texts, by their tokens, and this client's inputs are "
            f"not token ids: for images and the like, use {listed(others)}"
        )
    least = hiding.least_batch(texts=texts)
    if min(batches.size, batches.examples) < least:
        subject, number = "batch_size", batches.size
        if number >= least:
            subject, number = "the number of examples", batches.examples
        raise ClientError(
            f"{subject} is {number}, but {type(hiding).__name__} works only among several examples "
            f"of a batch: it must be at least {least}"
        )
