"""Checks that the epsilon that a hiding keeps holds for its client."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.client import Client, ClientError, WrappedError
from flwr_splitmix.clients.guards.mixing_batches import BatchMethodTrial
from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.hiding.unfit import UnfitError
from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments.across_batch import mixing_layers
from flwr_splitmix.segments.apart_trial import ApartTrial
from flwr_splitmix.segments.trials import draw_like, renew, widened_copies


def check_accounted(client: type[Client], base: type[Client], hiding: Hiding) -> None:
    """Refuse a client whose hiding would report an epsilon that does not hold.

    Parameters
    ----------
    client, base
        The client's class, and the one that leaves everything to the hiding.

    Raises
    ------
    ClientError
        If the client, or a subclass of the hiding without a `charge` of its own, overrides a method
        on which the epsilon rests.
    """
    if not hiding.accounts:
        return
    name = type(hiding).__name__
    changed = hiding.uncharged()
    by = f"{name}.{changed}"
    for method in hiding.rests_on:
        if getattr(client, method, None) is not getattr(base, method, None):
            changed, by = method, f"{client.__name__}.{method}"
    if changed:
        raise ClientError(
            f"{by} is your own, and {name} does not account for what it does, so there is no "
            f"epsilon: override {changed} in a subclass of the hiding, and there also `charge`, "
            "which states its cost; or take a hiding without an epsilon"
        )


class Trials:
    """Trials of a client's head, tail and data on which an epsilon rests; none without one.

    Parameters
    ----------
    hiding
        The client's hiding.
    segments
        The head and the tail, by these names.
    sets
        Data sets whose examples an epsilon is about; None for one that there is not.
    size
        Examples in a training batch.

    Attributes
    ----------
    rehearsed
        Whether `rehearse` has passed.
    """

    def __init__(
        self,
        hiding: Hiding,
        segments: nn.ModuleDict,
        sets: Iterable[ExampleSet | None],
        size: int,
    ) -> None:
        self._hiding = hiding
        self._segments = segments
        self._apart = ApartTrial()
        self._data = [BatchMethodTrial(data, size) for data in sets if data is not None]
        self.rehearsed = False

    def check_apart(self, batch: MaskedBatch) -> None:
        """Refuse a head or tail that mixes a batch's examples; see `refusal_of_mixing`.

        Parameters
        ----------
        batch
            As many of the client's examples as are in a training batch, on its device.

        Raises
        ------
        ClientError
            If the names of its layers, or a trial on these examples, show that it does.
        """
        look = partial(refusal_of_mixing, self._hiding, self._segments, batch)
        if refusal := self._apart.find(look, self._segments, batch.inputs, batch.mask):
            raise ClientError(refusal)

    def check_data(self) -> None:
        """Refuse data sets whose own `batch` lets examples change each other.

        Raises
        ------
        ClientError
            If there is one.
        """
        for trial in self._data:
            mixing = trial.find()
            trial.warn_of_inconclusive_trial()
            if mixing:
                raise ClientError(
                    "batch(indices) of this client's data set mixes examples: one changes what "
                    "others send or teach, so there is no epsilon. Let it make each example by "
                    "itself, such as with means that were computed once; if that is wrong, set "
                    "across_batch = False on the data set"
                )

    def rehearse(self, batch: MaskedBatch, *, single: bool) -> None:
        """Try a step on copies of head and tail; see `rehearse_on_copies`.

        Raises
        ------
        UnfitError, ClientError
            Raised by `rehearse_on_copies`.
        """
        rehearse_on_copies(self._hiding, self._segments, batch, single=single)
        self.rehearsed = True


def refusal_of_mixing(
    hiding: Hiding, ends: nn.ModuleDict, batch: MaskedBatch, *, renewed: bool, warns: bool
) -> str | None:
    """Return why a head or tail on which an epsilon rests is refused: it mixes a batch's examples.

    No epsilon covers lengths, so masks stay as they are in the trial. Where the hiding may send
    masks of its own, inputs without padding are also tried with masks of several lengths.

    Parameters
    ----------
    batch
        As many of the client's examples as are in a training batch, on its device.
    renewed, warns
        As of `mixes_examples`.

    Returns
    -------
    "" if neither does; None if the trial of one of them is inconclusive.
    """
    is_complete = True
    head = ends["head"]
    for part in hiding.apart:
        if part == "trunk":  # which the server has, and tries
            continue
        inputs = batch.inputs if part == "head" else _states_like(head, batch)
        for mask in _masks(hiding, head, batch):
            layer = mixing_layers(ends[part], inputs, mask, renewed=renewed, warns=warns)
            is_complete &= layer is not None
            if layer:
                return (
                    f"the {part} has {layer}, by which an example changes what others send or "
                    f"teach, so there is no epsilon: take a {part} without {layer}"
                )
    return "" if is_complete else None


def _masks(hiding: Hiding, head: nn.Module, batch: MaskedBatch) -> list[Tensor]:
    """Return the masks to try: the batch's, and one of several lengths if the hiding may send it.

    Returns
    -------
    int64 (b, T) each; of inputs without padding the first is (b, 1), and in the second a row is
    shorter than the one before by a token, until it is half as long.
    """
    if batch.mask.shape[1] > 1 or not hiding.own_masks:
        return [batch.mask]
    tokens = _states_like(head, batch).shape[1]
    rows = torch.arange(len(batch.mask), device=batch.mask.device)
    lengths = tokens - rows % (tokens // 2 + 1)
    places = torch.arange(tokens, device=batch.mask.device)
    return [batch.mask, (places < lengths[:, None]).to(batch.mask.dtype)]


def rehearse_on_copies(
    hiding: Hiding, ends: nn.ModuleDict, batch: MaskedBatch, *, single: bool
) -> None:
    """Let a hiding that keeps an epsilon try a step on copies of head and tail.

    They have random weights and get random inputs, so that the result reveals no example, and
    zeros in the weights hide nothing. If head and tail cannot take such inputs, they get
    the examples, with their own weights. Torch's random generators are left as they were.

    Parameters
    ----------
    batch
        A few of the client's examples, on its device.
    single
        Whether the client's batches have one example each.

    Raises
    ------
    UnfitError
        If the epsilon would not hold.
    ClientError
        If head and tail fail with these few examples.
    """
    if not hiding.accounts:
        return
    why: Exception | None = None
    device = batch.inputs.device
    for make, random in product(widened_copies(ends, batch.inputs), (True, False)):
        try:
            copied, inputs = make()
        except Exception as error:
            message = _no_trial(hiding, "cannot be copied (copy.deepcopy)")
            raise WrappedError(message, f"{message}: {error}") from error
        if random:
            renew(copied, device)
            inputs = draw_like(inputs)[0]
        try:
            with seeded_draws(device, 0):
                hiding.rehearse(copied, replace(batch, inputs=inputs), single=single)
            return
        except UnfitError:
            raise
        except Exception as error:
            why = error
    kind = type(why).__name__
    raise WrappedError(
        _no_trial(hiding, f"fail at it: {kind}; the log says more"),
        _no_trial(hiding, f"fail at it: {kind}: {why}"),
    ) from why


def _no_trial(hiding: Hiding, why: str) -> str:
    return (
        f"{type(hiding).__name__} tries a step on a few examples before the first round, so that "
        f"its epsilon holds, and head or tail {why}"
    )


def _states_like(head: nn.Module, batch: MaskedBatch) -> Tensor:
    """Draw hidden states (b, T, d); the head's own may be all alike, by weights of the server."""
    with torch.no_grad(), seeded_draws(batch.inputs.device, 0):
        return torch.randn_like(head(batch.inputs, batch.mask))
