"""Whether a run that goes on is mixed, or hidden, as it began."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flwr_splitmix.clients import Client
from flwr_splitmix.mixers import Mixer, Noisy
from flwr_splitmix.mixers.elsewhere import MixedElsewhere
from flwr_splitmix.runs import RunError
from flwr_splitmix.values import options_of

log = logging.getLogger("flwr.splitmix")

PROTECTION = "protection-of-run"
"""Name of these facts in a checkpoint's values."""


def facts_of_mixer(mixer: Mixer) -> dict[str, Any]:
    """Return what is known of a mixer, as JSON values.

    Who runs it, the server or a third party, is no part of that.

    Returns
    -------
    "what": "mixer". "kind": the names of its class and of those inside, without noise, such as
    "Shuffled(PatchCutMix)". "options": by name, those of all of them; an own mixer's as far as it
    has attributes of its parameters' names. "noise": the noise's values by name; None without.
    """
    noise = None
    if isinstance(mixer, MixedElsewhere):
        mixer = mixer.mixer
    if isinstance(mixer, Noisy):
        noise = options_of(mixer.noise)
        mixer = mixer.mixer
    nested = list(_nested(mixer))
    kind = "(".join(type(each).__name__ for each in nested) + ")" * (len(nested) - 1)
    options = {name: value for each in nested for name, value in options_of(each).items()}
    return {"what": "mixer", "kind": kind, "options": options, "noise": noise}


def digest(mixer: Mixer) -> str:
    """Return what stands for a mixer's facts, its noise among them, in a run's records."""
    facts = json.dumps(facts_of_mixer(mixer), sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def facts_of_hidings(clients: Sequence[Client]) -> dict[str, Any]:
    """Return what is known of the hidings of clients in this process, as `facts_of_mixer` does.

    Where they have several kinds, all are named, and no options.
    """
    hidings = [hiding for client in clients if (hiding := getattr(client, "hiding", None))]
    kinds = sorted({type(hiding).__name__ for hiding in hidings})
    options: dict[str, Any] = {}
    if len(kinds) == 1:
        for name, value in options_of(hidings[0]).items():
            options |= value if isinstance(value, dict) else {name: value}
    return {"what": "hiding", "kind": ", ".join(kinds), "options": options, "noise": None}


def _nested(mixer: object) -> Iterator[Mixer]:
    """Yield a mixer, the one inside, and so on."""
    while isinstance(mixer, Mixer):
        yield mixer
        mixer = getattr(mixer, "mixer", None)


def check_same(checkpoint: str, began: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse a mixer or a hiding of another kind; warn of other options, and of less noise.

    Of noise that begins the ledger warns.

    Parameters
    ----------
    checkpoint
        Which one it is, for messages.
    began, here
        As returned by `facts_of_mixer` or `facts_of_hidings`. Options that only one of them has, as
        another version of the package may, are not compared.

    Raises
    ------
    RunError
        If the kinds differ.
    """
    if began["kind"] != here["kind"]:
        what = here["what"]
        raise RunError(
            f"{checkpoint} is of the {what} {began['kind']}, and {here['kind']} cannot go on from "
            f"it: resume with the {what} that the run began with, or start a new run"
        )
    before, now = _differing(began["options"], here["options"])
    if began["noise"] is not None and here["noise"] is None:
        before, now = [*before, "noise"], [*now, "no noise"]
    elif began["noise"] is not None:
        was, is_now = _differing(began["noise"], here["noise"])
        before, now = [*before, *was], [*now, *is_now]
    if before:
        log.warning(
            "%s is of %s with %s, and here it has %s: the run goes on with that, and its results "
            "are of both",
            checkpoint,
            began["kind"],
            ", ".join(before),
            ", ".join(now),
        )


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return, as text, the options that two have in common and that differ."""
    names = [name for name in one if name in other and one[name] != other[name]]
    return [f"{n} = {one[n]}" for n in names], [f"{n} = {other[n]}" for n in names]
