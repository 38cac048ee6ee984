"""Checks of a mixer: its attributes, and what the methods that a user writes for it return."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.labels import loss_dtype
from flwr_splitmix.mixers.facts import check_facts
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.mixture import Mixed, Source, Upload
from flwr_splitmix.mixers.plan import Group, Member, Plan, SmashedShape
from flwr_splitmix.mixers.share import Share
from flwr_splitmix.mixers.wrapper import all_inside
from flwr_splitmix.values import check_kind
from flwr_splitmix.words import counted, described

Gradients = dict[int, list[Tensor | None]]


def check_mixer(mixer: object) -> None:
    """Check an object that is to mix, before anything is asked of it.

    Raises
    ------
    TypeError
        If it is not a `Mixer`, its `shares` are not classes of shares, or its `plan` takes other
        arguments.
    ValueError
        If another attribute has a value that is not allowed.
    """
    check_kind("mixer", mixer, Mixer, "a Mixer, such as PatchCutMix(k=2)")
    for layer in reversed(list(all_inside(cast(Mixer, mixer)))):
        _check_layer(layer)


def _check_layer(mixer: Mixer) -> None:
    check_facts(mixer)
    try:
        rng = np.random.default_rng(0)
        inspect.signature(mixer.plan).bind([], SmashedShape(1, 1, 1), rng, None)
    except TypeError as error:
        raise TypeError(
            f"{mixer}: `plan` cannot be called so ({error}); it takes (members, shape, rng, "
            "order_rng=None)"
        ) from None


def checked_plan(mixer: object, plan: object) -> Plan:
    """Return what `plan` returned.

    Raises
    ------
    TypeError
        If it is not a `Plan`, or its parts are none of passes, groups, members and shares.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"{mixer}: `plan` must return a Plan, got {described(plan)}")
    expected = "expected Plan(shape, passes): passes are a tuple of tuples of Group"
    passes: object = plan.passes
    for groups in _sequence(mixer, "passes", passes, expected):
        for group in _sequence(mixer, "a pass", groups, expected):
            if not isinstance(group, Group):
                raise TypeError(f"{mixer}: in a pass of the plan is {described(group)}; {expected}")
            expected_group = "expected Group(members), a tuple of Member(client, share)"
            members: object = group.members
            for member in _sequence(mixer, "a group's members", members, expected_group):
                _check_member(mixer, member, expected_group)
    return plan


def _sequence(mixer: object, subject: str, value: object, expected: str) -> Sequence[object]:
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{mixer}: {subject} of the plan is {described(value)}; {expected}")
    return value


def _check_member(mixer: object, member: object, expected: str) -> None:
    if not isinstance(member, Member):
        raise TypeError(f"{mixer}: in a group of the plan is {described(member)}; {expected}")
    client: object = member.client
    if isinstance(client, bool) or not isinstance(client, (int, np.integer)):
        raise TypeError(
            f"{mixer}: a member's client is {client!r:.40}; expected one of the numbers that "
            "`plan` is given as members"
        )
    share: object = member.share
    if not isinstance(share, Share):
        raise TypeError(
            f"{mixer}: the share of client {client} is {described(share)}; expected an object of "
            "a subclass of Share"
        )


def merged(
    mixer: Mixer,
    uploads: Mapping[int, Upload],
    plan: Plan,
    *,
    num_classes: int,
    device: torch.device | None = None,
) -> Mixed:
    """Let a mixer mix the uploads that arrived; see `Mixer.merge`. Targets get a loss's dtype.

    Raises
    ------
    EmptyMixtureError
        If no patch arrived at all.
    TypeError
        If what it returns is not a `Mixed` of tensors and sources.
    ValueError
        If its tensors have other rows than the plan's groups of which something arrived, other
        columns than the classes, or another dtype than the uploads.
    """
    mixed: object = mixer.merge(uploads, plan, num_classes=num_classes, device=device)
    if not isinstance(mixed, Mixed):
        raise TypeError(
            f"{mixer}: `merge` must return a Mixed(smashed, targets, sources), got "
            f"{described(mixed)}"
        )
    sources: object = mixed.sources
    if not isinstance(sources, (tuple, list)) or not all(isinstance(s, Source) for s in sources):
        raise TypeError(f"{mixer}: the sources that `merge` returns are not a tuple of Source")
    batch, tokens, width = plan.shape.size
    rows = len(sources) * batch
    for name, tensor, shape in (
        ("smashed", mixed.smashed, (rows, tokens, width)),
        ("targets", mixed.targets, (rows, num_classes)),
    ):
        unchecked: object = tensor
        if not isinstance(unchecked, Tensor) or unchecked.shape != shape:
            expected = ", ".join(map(str, shape))
            raise ValueError(
                f"{mixer}: the {name} that `merge` returns are {described(unchecked)}; expected a "
                f"tensor ({expected}), {counted(batch, 'row')} for each of "
                f"{counted(len(sources), 'source')}"
            )
    upload_dtype = next(
        (s.dtype for up in uploads.values() for s in up.smashed if s is not None), None
    )
    if upload_dtype is not None and mixed.smashed.dtype != upload_dtype:
        raise ValueError(
            f"{mixer}: the smashed data that `merge` returns are {mixed.smashed.dtype}; expected "
            f"{upload_dtype}, as of the uploads"
        )
    return replace(mixed, targets=mixed.targets.to(loss_dtype(mixed.smashed.dtype)))


def gradients_of(
    mixer: Mixer, gradient: Tensor, mixed: Mixed, plan: Plan, lost: Collection[int] = ()
) -> Gradients:
    """Let a mixer split the gradient of its mixture; see `Mixer.split`.

    Parameters
    ----------
    lost
        Groups of the mixture that have no gradient: their members get none. In `gradient` their
        rows are 0.

    Raises
    ------
    TypeError
        If what it returns is not a dictionary, by client index, of a list with a tensor or None for
        each pass.
    ValueError
        If there is a gradient for a client without a share in the plan.
    """
    gradients: object = mixer.split(gradient, mixed, plan)
    passes, members = len(plan.passes), plan.clients
    expected = (
        f"expected a dictionary by client of lists of {counted(passes, 'tensor')} (or None), one "
        "for each pass"
    )
    if not isinstance(gradients, Mapping):
        raise TypeError(f"{mixer}: `split` returns {described(gradients)}; {expected}")
    for client, parts in gradients.items():
        right = isinstance(parts, (list, tuple)) and len(parts) == passes
        if not right or not all(part is None or isinstance(part, Tensor) for part in parts):
            raise TypeError(
                f"{mixer}: `split` returns {described(parts)} for client {client}; {expected}"
            )
        if client not in members and any(part is not None for part in parts):
            raise ValueError(
                f"{mixer}: `split` returns a gradient for client {client!r:.40}, which has no "
                "share in the plan; its members have the numbers that `plan` was given"
            )
    result = {client: list(parts) for client, parts in gradients.items()}
    for source in (mixed.sources[group] for group in lost):
        for client in result.keys() & {member.client for member in source.members}:
            result[client][source.index] = None
            if all(part is None for part in result[client]):
                del result[client]
    return result
