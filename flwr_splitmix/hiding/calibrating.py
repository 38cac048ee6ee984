"""Hidings whose client has a network that learns on public texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding.correction import Correction
from flwr_splitmix.hiding.hiding import Hiding
from flwr_splitmix.storage import under

RECENT_STEPS = 20
"""Number of latest steps on public texts over which a round's metrics average errors."""


class Calibrating(Hiding):
    """Corrects the trunk's outputs with a network that learns on public texts.

    It learns before the first batch, and alongside training, since the trunk learns too. A subclass
    makes the network in `attach`, and calls `note` in `learn_public`.

    Parameters
    ----------
    public
        Public texts.
    calibration_epochs
        Epochs over the texts to learn on before the first batch.
    refine_every
        Training steps between two steps on public texts; 0 for none.

    Attributes
    ----------
    calibrated
        Whether the calibration before the first batch is done.
    """

    network: ClassVar[str]
    """Name of the network's correction in the client's state."""

    public: ExampleSet

    def __init__(self, public: ExampleSet, *, calibration_epochs: int, refine_every: int) -> None:
        super().__init__(public)
        self.calibration_epochs = calibration_epochs
        self.refine_every = refine_every
        self.calibrated = calibration_epochs == 0
        self._drawn = 0
        self._errors: deque[tuple[float, float]] = deque(maxlen=RECENT_STEPS)

    @classmethod
    def calibrates(cls, options: Mapping[str, Any]) -> bool:
        """Return whether there are epochs over public texts, where that is an option."""
        return bool(options.get("calibration_epochs", True))

    @property
    def correction(self) -> Correction | None:
        """The network with its optimizer; None before the first round, and for a client without."""
        raise NotImplementedError

    @property
    def learns_on(self) -> ExampleSet:
        """The public texts that the network learns on; here all of them."""
        return self.public

    @property
    def calibration_steps(self) -> int:
        """Steps before the first batch, once: `calibration_epochs` over the texts to learn on."""
        return 0 if self.calibrated else self._all_steps

    @property
    def _all_steps(self) -> int:
        batches = -(-len(self.learns_on) // self.side.batch_size)  # type: ignore[arg-type]
        return batches * self.calibration_epochs

    def refines(self, step: int) -> bool:
        """Return whether a step on public texts is due: at every `refine_every`-th step."""
        is_due = self.refine_every > 0 and step % self.refine_every == 0
        return is_due and self.correction is not None

    def public_batch(self) -> MaskedBatch | None:
        """Draw the next public texts; None without a network."""
        if self.correction is None:
            return None
        self._drawn += 1
        return self.public_batch_of(self._drawn - 1)

    def public_batch_of(self, number: int) -> MaskedBatch:
        """Return the texts of a batch by its number, from 0; it does not count as drawn."""
        side = self.side
        batches = Batches(self.learns_on, side.batch_size, drawn=number)
        return MaskedBatch.of(batches.next_batch(side.seed, side.client), side.device)

    def public_batches(self) -> tuple[range, range]:
        """Return the numbers of the batches drawn before the first training batch, and since."""
        if self.correction is None:
            return range(0), range(0)
        before = min(self._all_steps, self._drawn)
        return range(before), range(before, self._drawn)

    def note(self, step: int | None, errors: tuple[float, float]) -> None:
        """Note a step on public texts: its number, None alongside training, and relative errors.

        Parameters
        ----------
        errors
            Of the trunk's outputs and of the corrected ones.
        """
        self._errors.append(errors)
        if step is not None and step + 1 >= self._all_steps:
            self.calibrated = True

    @property
    def mean_errors(self) -> tuple[float, float]:
        """Means of the recent errors, before and after the correction; 0 without any."""
        if not self._errors:
            return 0.0, 0.0
        before, after = zip(*self._errors, strict=True)
        return sum(before) / len(before), sum(after) / len(after)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the network and the position in the public texts; no secret outlives a step."""
        meta: dict[str, Any] = {
            "public-drawn": self._drawn,
            "calibrated": self.calibrated,
            "errors": [list(pair) for pair in self._errors],
        }
        if self.correction is None:
            return {}, meta
        tensors, meta[self.network] = self.correction.state()
        return {f"{self.network}.{name}": tensor for name, tensor in tensors.items()}, meta

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state`, with the same options."""
        self._drawn, self.calibrated = int(meta["public-drawn"]), bool(meta["calibrated"])
        self._errors = deque(map(tuple, meta["errors"]), RECENT_STEPS)
        if self.correction is not None:
            self.correction.restore(under(self.network, tensors), meta[self.network])
