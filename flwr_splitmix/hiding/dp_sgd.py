"""DP-SGD on head and tail: clips each example's gradient and adds Gaussian noise to their sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.data.texts.text_set import IGNORED
from flwr_splitmix.extras import as_logged_before, needed_for
from flwr_splitmix.hiding.charges import Charges, PlannedClient
from flwr_splitmix.hiding.exchanged import ClientSide, SentBatch
from flwr_splitmix.hiding.hiding import Hiding
from flwr_splitmix.hiding.record_ledger import PUBLIC, RecordLedger
from flwr_splitmix.hiding.unfit import REMEDY as _REMEDY
from flwr_splitmix.hiding.unfit import UnfitError
from flwr_splitmix.privacy.accountant import check_delta
from flwr_splitmix.privacy.costs import check_drawn, hides
from flwr_splitmix.privacy.covering_noise import CoveringNoise
from flwr_splitmix.privacy.events import Channel
from flwr_splitmix.privacy.mechanism import add_noise
from flwr_splitmix.privacy.statement import Statement
from flwr_splitmix.scoring.texts import check_labels, text_loss

if TYPE_CHECKING:
    from flwr_splitmix.hiding.example_gradients import ExampleGradients
    from flwr_splitmix.hiding.watched_rows import WatchedRows


POWER = 2
"""How copies of an example pay, whose gradients are summed: see `record_ledger.as_releases`."""


def outside_of(*, returns: bool, padded: bool, tested: bool) -> tuple[Channel, ...]:
    """Return what leaves a client that trains by DP-SGD without being covered by epsilon.

    Parameters
    ----------
    returns
        Whether gradients are returned to the trunk. Else it learns nothing from this client, which
        sends no losses either.
    padded
        Whether masks tell the lengths of texts.
    tested
        Whether the client's own test records are scored. Scores of public ones tell no more of
        training records than the weights that made them, which the epsilon covers.
    """
    channels: dict[Channel, bool] = {
        "messages": True,
        "returned-gradients": returns,
        "lengths": padded,
        "losses": returns or tested,
        "trunk": returns,
    }
    return tuple(channel for channel, happens in channels.items() if happens)


class DPSGD(Hiding):
    """Trains head and tail by DP-SGD; what crosses the cuts is as in the plain U shape.

    The gradient of an example, a text or an image, is that of its own loss for head and tail
    together. Opacus computes the examples' gradients, whose clipped sum gets noise from the
    operating system; the optimizer uses the result as the batch's gradient. So a head and a
    tail that leave the client reveal an example only within epsilon, as long as the trunk between
    them does not change, and answers each example from that example's messages alone. One that
    mixes a batch's examples lets an example change the gradients of all others, which clipping does
    not bound: a strategy refuses it, but a client must take the server's word that it has none. A
    trunk that learns does so without noise, and what an example did to it shows in later gradients
    of heads and tails, and in an exported model. Messages and returned gradients are not covered
    either.

    Two epsilons are reported. `epsilon` is exact for the actual batches: disjoint in each epoch,
    and known to anyone who knows the run's seed. `epsilon-if-poisson` is that of Opacus, for the
    same number of steps with secret Poisson sampling, when one example is added or removed; it is
    what papers report, and not a bound here.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of the noise on the sum of a batch's gradients, over `clip_norm`.
    clip_norm
        The largest L2 norm of an example's gradient; larger ones are scaled down.
    delta
        Delta of both epsilons.

    Raises
    ------
    ValueError
        If a value is out of its range.

    Source: Abadi et al., Deep Learning with Differential Privacy (2016).
    """

    accounts = True
    own_masks = False
    mixes_batch = False
    watches_layers = True
    apart = ("head", "trunk", "tail")  # one that mixes puts each example into others' gradients
    rests_on = (
        "obfuscate", "recover", "loss", "perturb", "returned", "logits", "before_update",
    )  # fmt: skip
    warning = (
        "DP-SGD covers the weights of heads and tails, and no trunk that learns; messages carry "
        "inputs without noise, and the server reads them as the plain U shape's: docs/language.md"
    )

    def __init__(
        self, noise_multiplier: float = 1.0, clip_norm: float = 1.0, delta: float = 1e-5
    ) -> None:
        for name, value in (("noise_multiplier", noise_multiplier), ("clip_norm", clip_norm)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}; it must be a number above 0")
        check_drawn("noise_multiplier * clip_norm", noise_multiplier * clip_norm)
        check_delta(delta)
        super().__init__()
        self.noise_multiplier = noise_multiplier
        self.clip_norm = clip_norm
        self.delta = delta
        self.ledger = RecordLedger(frozenset({"train"}))
        with needed_for("DP-SGD"), as_logged_before():
            from opacus.accountants import RDPAccountant

        self.accountant = RDPAccountant()
        self._watched: WatchedRows | None = None
        self._size = 0
        self._records = np.empty(0, dtype=np.int64)

    @classmethod
    def sends_as(cls) -> type[Hiding]:
        """Return the plain U shape: its own messages are made by a head that is watched."""
        return Hiding

    def attach(self, side: ClientSide) -> None:
        """Begin a round.

        Raises
        ------
        ValueError
            If the object belongs to another client.
        UnfitError
            If examples' gradients of a trained layer are not known; the message names the layer.
        """
        from flwr_splitmix.hiding.example_gradients import unsupported

        super().attach(side)
        self.ledger.begin_round(side, self.noise_of(side.batch_size), POWER)
        if layer := unsupported(self._both):
            raise UnfitError(
                f"DP-SGD needs a gradient for each example, which Opacus does not compute for "
                f"{layer}; {_REMEDY}"
            )

    def rehearse(self, ends: nn.ModuleDict, batch: MaskedBatch, *, single: bool) -> None:
        """Take gradients of single examples through copies of head and tail; see `try_gradients`.

        Raises
        ------
        UnfitError
            If those of a trained layer are not known.
        """
        from flwr_splitmix.hiding.watched_rows import try_gradients

        try_gradients(ends, batch.inputs, batch.mask, single=single)

    def release(self) -> None:
        """End a round; remove the hooks from head and tail, which may be used elsewhere."""
        if self._watched is not None:
            self._watched.remove()
            self._watched = None

    @property
    def _both(self) -> nn.ModuleDict:
        return nn.ModuleDict({"head": self.side.head, "tail": self.side.tail})

    def noise_of(self, size: int) -> CoveringNoise:
        """Return the noise on the sum of a batch's clipped gradients, one for each weight.

        Replacing an example may turn its gradient into its opposite.
        """
        return CoveringNoise(
            sigma=self.noise_multiplier * self.clip_norm,
            moved=2 * self.clip_norm,
            bound=size * self.clip_norm,
        )

    def charge(self, kind: str, records: np.ndarray) -> None:
        """Record the examples of the next step, which is charged when it is taken.

        A round's first batch charges the steps that earlier attempts at the round may have taken.
        The client's own test examples are not counted, and so their scores are not covered.
        """
        if kind != "train":
            if kind not in PUBLIC:
                tested = outside_of(returns=False, padded=self.side.padded, tested=True)
                self.ledger.note(*tested)
            return
        self._records = records
        self.ledger.pay_owed()

    def planned_charges(self, planned: PlannedClient) -> Charges:
        """Return the charge of a step; evaluations cost nothing."""
        return Charges(
            delta=self.delta,
            noise=self.noise_of(planned.batch_size),
            power=POWER,
            outside=outside_of(
                returns=planned.returns, padded=planned.padded, tested=planned.tested > 0
            ),
        )

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        """Send hidden states unchanged; in training, track each example's part in them."""
        if torch.is_grad_enabled():
            if self._watched is None:
                from flwr_splitmix.hiding.watched_rows import WatchedRows

                self._watched = WatchedRows(self._both)
            self._watched.gradients.forget()
            self._watched.size = self._size = len(batch.inputs)
        return super().obfuscate(batch)

    @property
    def _gradients(self) -> ExampleGradients:
        assert self._watched is not None
        return self._watched.gradients

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        """Return the mean over examples of each one's own mean loss.

        A mean over all tokens would make a text's gradient depend on the lengths of the others.
        """
        check_labels(sent.batch)
        logits, labels = self.logits(hidden, sent), sent.batch.labels
        if labels.dim() == 1:
            return text_loss(logits, labels)
        each = text_loss(logits, labels, "none").view(len(labels), -1)
        scored = (labels[:, 1:] != IGNORED).sum(1).clamp(min=1)
        return (each.sum(1) / scored).mean()

    def before_update(self) -> None:
        """Replace the batch's gradient by the clipped and noised one, and charge it.

        Every trained parameter gets noise, even one that this batch did not use: whether it did can
        depend on a single example. All of it is computed in float32 or wider, and rounded to the
        parameter's dtype once, behind the noise.

        Raises
        ------
        UnfitError
            If a layer, such as a mixture of experts, does not keep a batch's examples apart, or
            weights are used outside of their own layer.
        """
        gradients = self._gradients
        gradients.check_known(self._size)
        trained = gradients.trainable_parameters()
        if not trained:
            return
        noise = self.noise_of(self._size)
        for parameter, total in zip(trained, gradients.clipped_sums(self.clip_norm), strict=True):
            noisy = add_noise(total, noise.sigma) / self._size
            parameter.grad = noisy.to(parameter.dtype)
        gradients.forget()
        self.ledger.charge(
            "train",
            self._records,
            noise,
            outside=outside_of(returns=self.side.returns, padded=self.side.padded, tested=False),
            power=POWER,
        )
        number = self.side.examples.get("train", self._size)
        self.accountant.step(
            noise_multiplier=self.noise_multiplier, sample_rate=min(1.0, self._size / number)
        )

    def statement(self) -> Statement:
        """Return what the weights reveal about an example, and what the number does not cover."""
        return self.ledger.statement(self.delta)

    def metrics(self) -> dict[str, float]:
        """Return both epsilons so far; that of Opacus from the first step on."""
        epsilons = {"epsilon": self.ledger.epsilon(self.delta)}
        if len(self.accountant):
            epsilons["epsilon-if-poisson"] = self._epsilon_if_poisson()
        return epsilons

    def _epsilon_if_poisson(self) -> float:
        """Return `accountant.get_epsilon`, with cached divergences: they take a second per step.

        It is infinite for noise that does not even hide one gradient: from far smaller noise Opacus
        would compute without end.
        """
        if not all(hides(noise, 1.0) for noise, _, _ in self.accountant.history):
            return math.inf
        from opacus.accountants.analysis.rdp import get_privacy_spent

        orders = self.accountant.DEFAULT_ALPHAS
        divergences = sum(
            steps * _divergences(noise, rate, tuple(orders))
            for noise, rate, steps in self.accountant.history
        )
        return float(get_privacy_spent(orders=orders, rdp=divergences, delta=self.delta)[0])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the ledger and the history of Opacus' accountant."""
        steps = [[float(a), float(b), int(n)] for a, b, n in self.accountant.history]
        return {}, {"text-ledger": self.ledger.state(), "accountant": steps}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.ledger.restore(meta["text-ledger"])
        self.accountant.history = [tuple(entry) for entry in meta["accountant"]]


@lru_cache(maxsize=16)
def _divergences(noise: float, rate: float, orders: tuple[float, ...]) -> Any:
    """Return the Rényi divergences of one step, as computed by Opacus."""
    from opacus.accountants.analysis.rdp import compute_rdp

    return compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=list(orders))
