"""What training under homomorphic encryption would cost: the estimate of MixGuard's Table VI."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class MeasuredTraining:
    """An encrypted training that somebody timed; the defaults are Rho et al.'s, 2024, on CoLA.

    Parameters
    ----------
    epoch_hours
        Wall time of an epoch of full fine-tuning.
    samples
        Texts in an epoch.
    layers
        Of the model that was trained.
    layer_parameters
        Parameters of one of them, as MixGuard has them: about 7 million of a BERT-style layer.
    teraflops
        Peak BF16 throughput of the machine: 2,643 of eight GeForce RTX 4090 together.
    """

    epoch_hours: float = 67.1
    samples: int = 8551
    layers: int = 2
    layer_parameters: float = 7e6
    teraflops: float = 2643.0

    @property
    def layer_seconds(self) -> float:
        """Seconds a sample and layer."""
        return self.epoch_hours * 3600 / self.samples / self.layers


RHO = MeasuredTraining()


@dataclass(frozen=True)
class EncryptedModel:
    """A model whose encrypted training is estimated; the defaults are Qwen3-1.7B on an H200 NVL.

    Parameters
    ----------
    layers
        That are trained under encryption. MixGuard has 28, which is all that Qwen3-1.7B has: its
        head and its tail are then counted, too.
    layer_parameters
        Parameters of one of them, about 50 million.
    teraflops
        Peak BF16 throughput of its machine: 1,671 of one H200 NVL.
    tokens, width
        Of a text, and of a hidden state.
    slots
        Numbers that one ciphertext holds.
    ciphertext_megabytes
        Size of a ciphertext.
    transfers
        Of a hidden state or its gradient, a step: up and down, forwards and backwards.
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
        """Estimate the seconds of training a sample, from a training that was measured.

        measured seconds a sample and layer x ratio of parameters a layer x layers x ratio of
        throughputs: linear in parameters, and in peak throughput. With the defaults it is 4,468.
        The paper's 4,454.9 is the same with its roundings: 14.1 s, 100.7 s, a ratio of 1.58.

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
        """How many hold one text's hidden states: tokens x width numbers, packed into slots."""
        return math.ceil(self.tokens * self.width / self.slots)

    @property
    def megabytes(self) -> float:
        """Megabytes a sample and step, both ways; keys and other things sent once are not in it.

        Source: MixGuard, appendix B.4.
        """
        return self.transfers * self.ciphertexts * self.ciphertext_megabytes
