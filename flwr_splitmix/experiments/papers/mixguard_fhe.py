"""Estimated cost of training under homomorphic encryption, as in MixGuard's Table VI."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class MeasuredTraining:
    """A timed encrypted training; the defaults are those of Rho et al. (2024) on CoLA.

    Parameters
    ----------
    epoch_hours
        Wall time of an epoch of full fine-tuning.
    samples
        Texts in an epoch.
    layers
        Number of layers of the trained model.
    layer_parameters
        Parameters per layer, as MixGuard counts them: about 7 million in a BERT-style layer.
    teraflops
        Peak BF16 throughput of the machine: 2,643 for eight GeForce RTX 4090 together.
    """

    epoch_hours: float = 67.1
    samples: int = 8551
    layers: int = 2
    layer_parameters: float = 7e6
    teraflops: float = 2643.0

    @property
    def layer_seconds(self) -> float:
        """Seconds per sample and layer."""
        return self.epoch_hours * 3600 / self.samples / self.layers


RHO = MeasuredTraining()


@dataclass(frozen=True)
class EncryptedModel:
    """A model whose encrypted training is estimated; the defaults are Qwen3-1.7B on an H200 NVL.

    Parameters
    ----------
    layers
        Number of layers trained under encryption. MixGuard takes 28, all of Qwen3-1.7B's, and so
        counts the head and the tail, too.
    layer_parameters
        Parameters per layer, about 50 million.
    teraflops
        Peak BF16 throughput of the machine: 1,671 for one H200 NVL.
    tokens, width
        Length of a text, and size of a token's hidden state.
    slots
        Numbers per ciphertext.
    ciphertext_megabytes
        Size of a ciphertext.
    transfers
        Transfers of hidden states or their gradients per step: up and down, forward and backward.
    """

    layers: int = 28
    layer_parameters: float = 50e6
    teraflops: float = 1671.0
    tokens: int = 512
    width: int = 2048
    slots: int = 32_768
    ciphertext_megabytes: float = 15.0
    transfers: int = 4

    def seconds(self, measured: MeasuredTraining = RHO) -> float:
        """Estimate the seconds of training per sample, from a measured training.

        This is measured seconds per sample and layer x ratio of parameters per layer x layers x
        ratio of throughputs: linear in parameters, and in peak throughput. The defaults give 4,468.
        The paper's 4,454.9 is the same with intermediate rounding: 14.1 s, 100.7 s, a ratio of
        1.58.

        Source: MixGuard, appendix B.4.
        """
        return (
            measured.layer_seconds
            * (self.layer_parameters / measured.layer_parameters)
            * self.layers
            * (measured.teraflops / self.teraflops)
        )

    @property
    def ciphertexts(self) -> int:
        """Number of ciphertexts for one text: tokens x width numbers, packed into slots."""
        return math.ceil(self.tokens * self.width / self.slots)

    @property
    def megabytes(self) -> float:
        """Megabytes per sample and step, both ways, without keys and other data sent once.

        Source: MixGuard, appendix B.4.
        """
        return self.transfers * self.ciphertexts * self.ciphertext_megabytes
