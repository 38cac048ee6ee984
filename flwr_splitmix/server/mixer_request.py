"""A strategy's request to a third-party mixer, and the options that exclude one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr_splitmix.links import MixerLink
from flwr_splitmix.links.frames.wire import rounds
from flwr_splitmix.mixers import Mixer
from flwr_splitmix.mixers.described import cannot_mix_elsewhere, check_adds_nothing
from flwr_splitmix.mixers.elsewhere import MixedElsewhere
from flwr_splitmix.observers import LedgerElsewhere
from flwr_splitmix.privacy import RunAccount
from flwr_splitmix.server.evaluation.over_link import Evaluation
from flwr_splitmix.server.segments.upper import TrainedUpper
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.server.steps.part_count import PartsAsked


@dataclass(frozen=True)
class MixerRequest:
    """A strategy's request to a link's mixer, the same in each of its runs.

    Parameters
    ----------
    link
        The link, which other strategies may have, too.
    mixing, receive_account
        The two arguments of `MixerLink.request`.
    """

    link: MixerLink
    mixing: Mapping[str, Any]
    receive_account: Callable[[RunAccount], None] | None

    def make(self) -> None:
        """Have the link send this request to its mixer in the run that begins."""
        self.link.request(self.mixing, self.receive_account)


def mix_elsewhere(
    link: MixerLink,
    mixer: Mixer,
    upper: TrainedUpper,
    *,
    lengths: tuple[int | None, int],
    averages: bool,
    evaluation: Evaluation,
    ledger: LedgerElsewhere | None,
    pace: Pace,
    parts: PartsAsked,
) -> tuple[MixedElsewhere, MixerRequest]:
    """Return the mixer that remains at the server, and the request to the link's mixer.

    Parameters
    ----------
    lengths
        The strategy's `steps_per_round` and `epochs_per_round`.
    averages
        Whether lower segments are averaged.
    ledger
        If clients add noise, the view of the mixer's ledger.
    parts
        `micro_batches`.

    Raises
    ------
    ValueError
        If an option of the strategy would reveal a single client to the server, or needs what only
        the mixer knows; the message names the key and the remedy.
    """
    check_goes_elsewhere(averages=averages, evaluation=evaluation, pace=pace, parts=parts)
    elsewhere = MixedElsewhere(mixer)
    steps, epochs = lengths
    geometry = upper.geometry
    if rounds(link.wire_dtype, upper.input_dtype):
        prefix = 0 if geometry is None else geometry.prefix
        check_adds_nothing(mixer, prefix, link.wire_dtype)
    mixing = {
        "mixing": elsewhere.description,
        "classes": upper.num_classes,
        **({"multi-label": True} if upper.multi_label else {}),
        "dtype": str(upper.input_dtype).removeprefix("torch."),
        "geometry": None
        if geometry is None
        else {
            "patches": geometry.patches,
            "width": geometry.width,
            "prefix": geometry.prefix,
            "grid": None if geometry.grid is None else list(geometry.grid),
        },
        "steps-per-round": steps or 0,
        "epochs-per-round": epochs,
        "ledger": None if ledger is None else ledger.asked,
    }
    return elsewhere, MixerRequest(link, mixing, None if ledger is None else ledger.receive_account)


def check_goes_elsewhere(
    *, averages: bool, evaluation: Evaluation, pace: Pace, parts: PartsAsked
) -> None:
    """Raise ValueError for an option that excludes a third-party mixer."""
    because = [
        (
            averages,
            "the strategy averages lower segments, which would come to the server one by one; take "
            "the strategy that does not average (CutMixSL for CutMixSFL)",
        ),
        (
            evaluation != "none",
            f"evaluation is {evaluation!r}, for which each client's test data come to the server "
            "unmixed; set evaluation to 'none'",
        ),
        (
            pace.skips,
            "straggler is 'skip', and only the mixer knows which client is late; set straggler to "
            "'wait'",
        ),
        (
            pace.on_arrival,
            "group_order is 'arrival', and a mixer hands on all groups of a step at once; set "
            "group_order to 'random'",
        ),
        (
            pace.grouping != "random",
            f"grouping is {pace.grouping!r}, and only the mixer knows how fast a client is; set "
            "grouping to 'random'",
        ),
        (
            parts != 1,
            f"micro_batches is {parts!r}, and a mixer takes whole batches; set micro_batches to 1",
        ),
    ]
    for wrong, sentence in because:
        if wrong:
            raise cannot_mix_elsewhere(sentence)
