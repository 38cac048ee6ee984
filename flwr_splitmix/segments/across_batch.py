"""Layers that make examples of a batch depend on each other, above all batch normalisation."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flwr_splitmix.seeding import seeded_draws, seeded_secrets
from flwr_splitmix.segments.modules import BATCH_NORMS
from flwr_splitmix.segments.trials import (
    InconclusiveTrialError,
    agree,
    draw_like,
    renew,
    widened_copies,
    with_rows,
)

log = logging.getLogger("flwr.splitmix")

_UNNAMED = "a layer across the batch"
"""How messages describe a segment whose outputs show it, while its layers' names do not."""

MIN_EXAMPLES = 4
"""Fewest examples in a trial; those of a smaller batch are repeated."""


def needs_whole_batch(segment: nn.Module) -> str:
    """Return the kind of layers that couple the outputs of examples of a batch.

    These are BatchNorm and modules with a true attribute `across_batch`; "" if there are none. With
    one, a batch cannot be divided, and there is no epsilon: noise is calibrated to an example's
    effect on its own upload.
    """
    for part in segment.modules():
        name = getattr(part, "original_name", "")  # of a scripted module
        if isinstance(part, BATCH_NORMS) or "BatchNorm" in name:
            return "BatchNorm"
    parts = (part for part in segment.modules() if getattr(part, "across_batch", False))
    return next((type(part).__name__ for part in parts), "")


def mixes_examples(
    segment: nn.Module, inputs: Tensor, *others: Tensor, renewed: bool = True, warns: bool = True
) -> str | None:
    """Return what makes an example's output in training change with other examples.

    Finds what `needs_whole_batch` cannot see, such as attention over the batch
    (`nn.TransformerEncoderLayer` without `batch_first`), a GRU over it or `F.batch_norm`. A copy of
    the segment is run on two batches and on mixtures of them, one for each bit of an example's
    index: where the bit is set, the example is that of the second batch. Any two indices differ in
    a bit, so each example is seen beside both forms of every other one; its output must always be
    that in its own batch. Two mixtures have the first and the last bit the other way round, so that
    each example is missing from one. This is done twice: with the segment's weights on the inputs,
    rolled in the second batch, and with random weights on random inputs. So a layer is hidden
    neither by a closed gate, nor by weights that somebody chose, nor by examples that are all
    alike. A buffer that a call leaves otherwise after other examples, such as a running mean, is
    found, too, unless it is neither persistent nor changes an output of the next call. Torch's
    random generators are left as they were.

    Parameters
    ----------
    inputs
        A batch (b, ...), on the segment's device. Layers may use its size: let it have as many
        examples as in training.
    others
        Further arguments with one row for each example (b, ...); they are not changed.
    renewed
        Whether to try random weights, too; with the same inputs, once is enough.
    warns
        Whether to log that the trial is inconclusive.

    Returns
    -------
    A layer across the batch or the name of a buffer, in words; "" if there is none under any of
    these weights. None if the trial is inconclusive: if the segment cannot be copied
    or fails with random weights, or if its outputs or buffers differ from call to call although the
    generators are seeded.
    """
    rows = torch.arange(max(len(inputs), MIN_EXAMPLES), device=inputs.device) % len(inputs)
    batch, others = inputs[rows], tuple(each[rows] for each in others)
    why = ""
    for make in widened_copies(segment, batch):
        try:
            copied, examples = make()
            answer, why = _try_examples(copied.train(), examples, others, renewed)
        except Exception as error:  # what cannot be copied, or has weights that cannot be replaced
            why = str(error)
            continue
        if answer is not None:
            return answer
    if warns:
        warn_of_inconclusive_trial(type(segment).__name__, why)
    return None


def warn_of_inconclusive_trial(name: str, why: str) -> None:
    """Log that the trial of whether something mixes the examples of a batch is inconclusive."""
    log.warning(
        "the trial of whether %s mixes the examples of a batch is incomplete, and may miss that it "
        "does: %s",
        name,
        why,
    )


def mixing_layers(
    segment: nn.Module, inputs: Tensor, *others: Tensor, renewed: bool = True, warns: bool = True
) -> str | None:
    """Return the kind of layers or the buffer that couples examples' outputs.

    It is found by name (`needs_whole_batch`), else by a trial; parameters as for `mixes_examples`.

    Returns
    -------
    "" if there are none; None if the trial is inconclusive.
    """
    return needs_whole_batch(segment) or mixes_examples(
        segment, inputs, *others, renewed=renewed, warns=warns
    )


def _try_examples(
    segment: nn.Module, inputs: Tensor, others: Sequence[Tensor], renewed: bool
) -> tuple[str | None, str]:
    """Try a segment, whose weights are then lost; return the answer, or None and the reason."""
    # Rolled the other way, half of the examples would be in every mixture, though elsewhere.
    exchanged = inputs, inputs.roll(-1, 0)
    alike = bool((exchanged[0] == exchanged[1]).reshape(len(inputs), -1).all(1).any())
    drawn = draw_like(inputs)
    pairs = [drawn, exchanged] if alike else [exchanged, drawn]
    # Conclusiveness is tried with random weights: with a server's, it could reveal examples.
    dependence = _first_answer(segment, pairs, others)[0] or ""
    if dependence or not renewed:
        return dependence, ""
    renew(segment, inputs.device)
    answer, why = _first_answer(segment, [drawn, exchanged], others)
    return answer, f"with random weights, {why}"


def _first_answer(
    segment: nn.Module, pairs: Sequence[tuple[Tensor, Tensor]], others: Sequence[Tensor]
) -> tuple[str | None, str]:
    """Return the answer of the first pair of batches that gives one, or why the last gave none."""
    why = ""
    for inputs, replacements in pairs:
        try:
            return _dependence(segment, inputs, replacements, others), ""
        except Exception as error:  # the weights or inputs may not be what the segment can take
            why = str(error)
    return None, why


def _dependence(
    segment: nn.Module, inputs: Tensor, replacements: Tensor, others: Sequence[Tensor]
) -> str:
    """Replace half of the examples at a time, and return what makes outputs of others change.

    All batches have one shape, so kernels round the outputs of unchanged examples alike. Every call
    finds the buffers as the first one did, or made them.

    Raises
    ------
    InconclusiveTrialError
        If the outputs do not show it.
    """
    originals = {name: buffer.clone() for name, buffer in segment.named_buffers()}
    changed: set[str] = set()

    def call(part: nn.Module, batch: Tensor) -> Tensor:
        with seeded_draws(batch.device, 0), seeded_secrets():
            return with_rows(part(batch.clone(), *others), len(batch))

    def run(batch: Tensor) -> Tensor:
        for name, buffer in segment.named_buffers():  # a call may change them for the next
            if name not in originals:
                originals[name] = buffer.clone()
            elif not torch.equal(originals[name], buffer):
                changed.add(name)
                if originals[name].shape == buffer.shape:
                    buffer.copy_(originals[name])
        return call(segment, batch)

    def called(batch: Tensor) -> nn.Module:
        copied = copy.deepcopy(segment)  # so that counters outside of buffers begin alike, too
        call(copied, batch)
        return copied

    if torch.equal(inputs, replacements):
        raise InconclusiveTrialError("it fails on other inputs than these, which are all alike")
    places = torch.arange(len(inputs), device=inputs.device)
    halves = [places >> bit & 1 == 1 for bit in range((len(inputs) - 1).bit_length())]
    # Without these, the first example would be in every mixture, and hide a largest number of its.
    halves += [~halves[0], ~halves[-1]]
    with torch.no_grad():
        before, after = run(inputs), run(replacements)
        if not (before.isfinite().any() and after.isfinite().any()):
            raise InconclusiveTrialError("its outputs are NaN or infinite")
        if before.shape == after.shape and all(
            agree(_joined(before, after, half), run(_joined(inputs, replacements, half)))
            for half in halves
        ):
            if not changed:
                return ""
            one, other, again = called(inputs), called(replacements), called(inputs)
            if _differing(one, again, changed):
                raise InconclusiveTrialError("its buffers differ from call to call")
            names = _differing(one, other, changed)
            # One that is not persistent leaves with no weights: it matters if it changes outputs.
            if names and not segment.state_dict().keys() & names:
                names = set() if _same(call(one, inputs), call(other, inputs)) else names
            return f"the buffer {min(names)!r} that examples change" if names else ""
        if not agree(before, run(inputs)):
            raise InconclusiveTrialError("its outputs differ from call to call")
        return _UNNAMED


def _differing(one: nn.Module, other: nn.Module, names: set[str]) -> set[str]:
    """Return the names of those buffers that differ between two copies of a segment."""
    return {name for name in names if not _same(one.get_buffer(name), other.get_buffer(name))}


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two buffers are equal; what is NaN in both is."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _joined(one: Tensor, other: Tensor, chosen: Tensor) -> Tensor:
    """Return a batch (b, ...) with rows of `other` where `chosen`, bool (b,), else of `one`."""
    return torch.where(chosen.view(-1, *(1,) * (one.dim() - 1)), other, one)
