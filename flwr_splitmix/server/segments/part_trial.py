"""Whether examples get the same logits and losses in a part of a batch as in the whole of it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_splitmix.device import autocast
from flwr_splitmix.labels import TargetLoss, loss_dtype, name_of
from flwr_splitmix.private_names import uncompiled
from flwr_splitmix.seeding import seeded_draws, seeded_secrets
from flwr_splitmix.segments.across_batch import MIN_EXAMPLES, warn_of_inconclusive_trial
from flwr_splitmix.segments.trials import (
    InconclusiveTrialError,
    agree,
    draw_like,
    renew,
    widened_copies,
    with_rows,
)

log = logging.getLogger("flwr.splitmix")

Run = Callable[[Sequence[Tensor], int], tuple[Tensor, Tensor]]
"""Tensors with a row for each example, and a seed, to outputs with a row for each of them, and to
the state of torch's generator afterwards."""

_DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
"""Layers whose `p` is the share of numbers that they drop."""

_SHARE = 4
"""One in so many examples of a part is tried, as several passes should not cost more than one."""

_ULPS = 64
"""Allowed difference of a sum, in units of its last place, between batches of other sizes."""


def check_in_parts(
    module: nn.Module,
    loss: TargetLoss | None,
    smashed: Tensor,
    targets: Tensor,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Refuse an upper segment or a loss whose results differ between parts and a whole batch.

    A copy is run on a quarter of the examples, at least 4, and on every second one of these, whose
    outputs must be the same. The upper segment is tried twice, as by `mixes_examples`: with its
    weights, and with random weights on random inputs. Torch's dropout is off. What draws other
    numbers in each call is run, with one seed, on two batches of one size that differ in every
    second example; of it only an effect on the others is seen. What has a false attribute
    `across_batch` is not tried. Random generators, buffers and gradients are left as they were, but
    not what a loss that is a function keeps elsewhere: it cannot be copied.

    Parameters
    ----------
    loss
        None stands for a loss of the package, which has a term for each example.
    smashed, targets
        A part of a batch: (n, prefix + N, d) and (n, L), on the device.
    device, dtype
        Where, and in which precision, the segment is trained.

    Raises
    ------
    ValueError
        If outputs differ; the message has the remedy.
    """
    count = max(MIN_EXAMPLES, len(smashed) // _SHARE)
    count += count % 2
    places = torch.arange(count, device=smashed.device)
    rows = places * len(smashed) // count if count < len(smashed) else places % len(smashed)
    smashed, targets = smashed[rows], targets[rows]
    devices = {t.device for t in module.state_dict().values() if isinstance(t, Tensor)}
    used = [gpu for gpu in devices | {device} if gpu.type == "cuda"]
    with torch.random.fork_rng(devices=used):
        if getattr(module, "across_batch", None) is not False:
            name = type(module).__name__
            if not _alike(name, _trials_of_module(module, smashed, device, dtype)):
                raise ValueError(_refusal(f"the upper segment ({name})", "logits"))
        if loss is None or getattr(loss, "across_batch", None) is False:
            return
        if not _alike(name_of(loss), _trials_of_loss(loss, targets, device)):
            raise ValueError(_refusal(f"loss {name_of(loss)}", "losses"))


def _refusal(subject: str, result: str) -> str:
    return (
        f"{subject} computes {result} of an example that depend on the others in its batch, so "
        "that parts of a batch would train something else than the whole: set micro_batches to 1 "
        "(in an app the key micro-batches); if that is wrong, or intended, set across_batch = "
        "False on it"
    )


def _alike(name: str, trials: Iterable[Callable[[], bool]]) -> bool:
    """Return whether no trial shows a difference; warn if none is conclusive."""
    conclusive, why = False, ""
    for trial in trials:
        try:
            if not trial():
                return False
            conclusive = True
        except Exception as error:  # some cannot be copied, or take no such inputs or weights
            why = why or " ".join(str(error).split())
    if not conclusive:
        warn_of_inconclusive_trial(name, why)
    return True


def _trials_of_module(
    module: nn.Module, smashed: Tensor, device: torch.device, dtype: torch.dtype
) -> Iterator[Callable[[], bool]]:
    """Yield trials with the module's own weights, and with random ones on random inputs."""
    module = uncompiled(module)

    def tried(weights: nn.Module, inputs: Tensor) -> bool:
        widest, *others = widened_copies(weights, inputs)
        if others or dtype != torch.float32:  # 16 bits hide small differences
            try:
                wide, wide_inputs = widest()
                return alike_in_parts(_run_of(wide, device, torch.float32), [wide_inputs])
            except Exception:
                log.debug("the trial runs as in training", exc_info=True)
        return alike_in_parts(_run_of(weights, device, dtype), [inputs])

    def renewed() -> bool:
        weights = copy.deepcopy(module)
        renew(weights, device)
        return tried(weights, draw_like(smashed)[0])

    yield partial(tried, module, smashed)
    yield renewed


def _run_of(module: nn.Module, device: torch.device, dtype: torch.dtype) -> Run:
    """Return a function that runs a new copy of a module in training mode, without dropout."""

    @torch.no_grad()
    def run(inputs: Sequence[Tensor], seed: int) -> tuple[Tensor, Tensor]:
        copied = copy.deepcopy(module).train()
        for part in copied.modules():
            if isinstance(part, _DROPOUTS):
                part.p = 0.0
            elif isinstance(part, nn.MultiheadAttention):
                part.dropout = 0.0
        with seeded_draws(device, seed), seeded_secrets(), autocast(device, dtype):
            outputs = copied(*(each.clone() for each in inputs))
            return with_rows(outputs, len(inputs[0])), torch.get_rng_state()

    return run


def _trials_of_loss(
    loss: TargetLoss, targets: Tensor, device: torch.device
) -> Iterator[Callable[[], bool]]:
    """Yield trials with random logits: for the targets, and for classes that lie unevenly."""

    def run(inputs: Sequence[Tensor], seed: int) -> tuple[Tensor, Tensor]:
        logits, cloned_targets = (each.clone() for each in inputs)
        copied = copy.deepcopy(loss)
        with seeded_draws(device, seed), seeded_secrets():
            losses = with_rows(copied(logits.requires_grad_(), cloned_targets), len(logits))
            return losses.detach(), torch.get_rng_state()

    count, classes = targets.shape
    targets = targets.to(loss_dtype(targets.dtype))
    with seeded_draws(device, 1):
        logits = torch.randn_like(targets)
    places = torch.arange(count, device=targets.device)
    uneven = torch.where(places % 2 == 0, places // 2 % classes, 0)
    yield partial(alike_in_parts, run, [logits, targets])
    yield partial(alike_in_parts, run, [logits, F.one_hot(uneven, classes).to(targets.dtype)])


def alike_in_parts(run: Run, rows: Sequence[Tensor]) -> bool:
    """Return whether every second example has the same outputs without the others.

    Raises
    ------
    InconclusiveTrialError
        If the outputs do not show it.
    """
    half = [each[::2] for each in rows]
    whole, drawn = run(rows, 0)
    if not whole.isfinite().any():
        raise InconclusiveTrialError("its outputs are NaN or infinite")
    usual = float(whole[whole.isfinite()].double().abs().median())
    if agree(whole[::2], run(half, 0)[0], ulps=_ULPS, usual=usual):
        return True
    if agree(whole, run(rows, 1)[0], ulps=_ULPS, usual=usual):
        return False
    # It draws numbers, which differ for a batch of another size.
    exchanged = [torch.stack([examples, examples.roll(1, 0)], 1).flatten(0, 1) for examples in half]
    others, drawn_for_others = run(exchanged, 0)
    if agree(whole[::2], others[::2]):
        return True
    if not agree(whole, run(rows, 0)[0]):
        raise InconclusiveTrialError("its outputs differ from call to call")
    if not torch.equal(drawn, drawn_for_others):
        raise InconclusiveTrialError("how many random numbers it draws depends on the examples")
    return False
