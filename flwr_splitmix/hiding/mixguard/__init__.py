"""MixGuard: obfuscation of hidden states and gradients at the client.

It does not hide the target from an attentive server. The gradients of a step's messages are
multiples of each other and reveal how to decode them, and the messages alone can be separated
blindly; `flwr_splitmix.attacks` does both, and breaks the two extensions as well. The remaining
protection is the depth of the head and the secret tokens, measured by
`benchmarks.mixguard_attacks`.
"""

from flwr_splitmix.hiding.correction import calibration_loss
from flwr_splitmix.hiding.mixguard.all_sources import balance_gradients
from flwr_splitmix.hiding.mixguard.calibration import (
    CalibratedTrunk,
    Calibration,
    Calibrator,
)
from flwr_splitmix.hiding.mixguard.leak import measured_leak
from flwr_splitmix.hiding.mixguard.mixtures import Mixtures
from flwr_splitmix.hiding.mixguard.one_message import one_message
from flwr_splitmix.hiding.mixguard.options import MixGuardOptions
from flwr_splitmix.hiding.mixguard.padding import PaddedTexts, pad_together
from flwr_splitmix.hiding.mixguard.perturbation import Perturbation, perturb
from flwr_splitmix.hiding.mixguard.protocol import MixGuard
from flwr_splitmix.hiding.mixguard.residual import ResidualKernel
from flwr_splitmix.hiding.mixguard.sampler import SCALE, draw_secret
from flwr_splitmix.hiding.mixguard.secret import Secret
from flwr_splitmix.hiding.mixguard.tokens import InsertedTokens, SecretTokens

__all__ = [
    "SCALE",
    "CalibratedTrunk",
    "Calibration",
    "Calibrator",
    "InsertedTokens",
    "MixGuard",
    "MixGuardOptions",
    "Mixtures",
    "PaddedTexts",
    "Perturbation",
    "ResidualKernel",
    "Secret",
    "SecretTokens",
    "balance_gradients",
    "calibration_loss",
    "draw_secret",
    "measured_leak",
    "one_message",
    "pad_together",
    "perturb",
]
