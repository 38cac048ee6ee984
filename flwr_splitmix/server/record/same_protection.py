"""Checks that a resumed run is mixed, or hidden, as it began."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from flwr_splitmix.clients import Client
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.mixers import Mixer, Noisy
from flwr_splitmix.mixers.elsewhere import MixedElsewhere
from flwr_splitmix.mixers.wrapper import all_inside
from flwr_splitmix.runs import RunError
from flwr_splitmix.values import options_of
from flwr_splitmix.words import listed

log = logging.getLogger("flwr.splitmix")

PROTECTION = "protection-of-run"
"""Name of these facts in a checkpoint's values."""


def facts_of_mixer(mixer: Mixer) -> dict[str, Any]:
    """Return the facts about a mixer, as JSON values.

    Whether the server or a third party runs it is not among them.

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
    mixers = list(all_inside(mixer))
    kind = "(".join(type(each).__name__ for each in mixers) + ")" * (len(mixers) - 1)
    options = {name: value for each in mixers for name, value in options_of(each).items()}
    return {"what": "mixer", "kind": kind, "options": options, "noise": noise}


def digest(mixer: Mixer) -> str:
    """Return a digest of a mixer's facts, including its noise, for a run's records."""
    facts = json.dumps(facts_of_mixer(mixer), sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def facts_of_hidings(clients: Sequence[Client]) -> dict[str, Any]:
    """Return the facts about the hidings of clients in this process, as `facts_of_mixer` does.

    Returns
    -------
    "kind": the names of all their classes. "options": by name, those of the first
    client, as far as all have them. "clients": for each client its values of the options that are
    not the same for all.
    """
    of_clients = (getattr(client, "hiding", None) for client in clients)
    hidings = [hiding for hiding in of_clients if isinstance(hiding, Hiding)]
    kinds = sorted({type(hiding).__name__ for hiding in hidings})
    each = [_flat(hiding.made_with()) for hiding in hidings]
    first, *others = each or [{}]
    first = {n: value for n, value in first.items() if all(n in other for other in others)}
    unlike = [n for n, value in first.items() if any(other[n] != value for other in others)]
    return {
        "what": "hiding",
        "kind": ", ".join(kinds),
        "options": first,
        "clients": [{n: options[n] for n in unlike} for options in each],
        "noise": None,
    }


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those that are within others beside them."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat


def check_same(checkpoint: str, began: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse a mixer or a hiding of another kind; warn of other options, and of less noise.

    The ledger warns of noise that begins, and the run of more or fewer clients.

    Parameters
    ----------
    checkpoint
        Its name, for messages.
    began, here
        As returned by `facts_of_mixer` or `facts_of_hidings`. Options that only one of them has, as
        another version of the package may, are not compared.

    Raises
    ------
    RunError
        If the kinds differ.
    """
    if began["kind"] != here["kind"]:
        noun = here["what"]
        raise RunError(
            f"{checkpoint} is from the {noun} {began['kind']}, and {here['kind']} cannot resume "
            f"from it: resume with the {noun} that the run began with, or start a new run"
        )
    before, after = _of_clients(began, here)
    if began["noise"] is not None and here["noise"] is None:
        before, after = [*before, "noise"], [*after, "no noise"]
    elif began["noise"] is not None:
        was, is_now = _differing(began["noise"], here["noise"])
        before, after = [*before, *was], [*after, *is_now]
    if before:
        log.warning(
            "%s is from %s with %s, and here it has %s: the run continues with the latter, so its "
            "results come from both",
            checkpoint,
            began["kind"],
            ", ".join(before),
            ", ".join(after),
        )


def _of_clients(began: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return, as text, the options that differ, with their clients if not all have them."""
    pairs = list(zip(began.get("clients", [{}]), here.get("clients", [{}]), strict=False))
    changes: dict[tuple[str, str], list[int]] = {}
    for client, (was, is_now) in enumerate(pairs):
        differing = _differing({**began["options"], **was}, {**here["options"], **is_now})
        for change in zip(*differing, strict=True):
            changes.setdefault(change, []).append(client)
    labelled = [
        (change, "" if len(clients) == len(pairs) else f" of client {listed(clients, most=1)}")
        for change, clients in changes.items()
    ]
    return [was + whose for (was, _), whose in labelled], [
        is_now + whose for (_, is_now), whose in labelled
    ]


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return, as text, the options that two have in common and that differ."""
    names = [name for name in one if name in other and one[name] != other[name]]
    return [f"{n} = {one[n]}" for n in names], [f"{n} = {other[n]}" for n in names]
