"""A recorded step as named tensors and plain values, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

from torch import Tensor

from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.mixers import (
    SHARES,
    Group,
    Member,
    Plan,
    Share,
    SmashedShape,
    Upload,
    share_from_wire,
)
from flwr_splitmix.mixers.elsewhere import GROUP_SHARES
from flwr_splitmix.mixers.plan import grow
from flwr_splitmix.mixers.shuffled import ShuffledPlan
from flwr_splitmix.server.intake.descriptions import MAX_SMASHED
from flwr_splitmix.storage import text_keys, whole_keys


@dataclass(frozen=True)
class UShapeStep:
    """One training step of the U shape, as the server saw it.

    Parameters
    ----------
    server_round, number
        Round and step; steps are counted within the round, from 0.
    messages
        By client, hidden states (b, T, d), one tensor per message.
    masks
        By client, uint8 (b, T): 1 at positions that the trunk attends to.
    outputs
        By client, the trunk's output for each message.
    returned
        By client, the gradient of its own loss at each of these outputs.
    gradients
        By client, the gradient of each message, which is returned to the client.
    drawn
        By client, how many batches it had been asked for before, over all rounds.
    """

    server_round: int
    number: int
    _: KW_ONLY
    messages: Mapping[int, Sequence[Tensor]]
    masks: Mapping[int, Tensor]
    outputs: Mapping[int, Sequence[Tensor]]
    returned: Mapping[int, Sequence[Tensor]]
    gradients: Mapping[int, Sequence[Tensor | None]]
    drawn: Mapping[int, int]


def pack_step(step: Step | UShapeStep) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a step as named tensors and JSON-serialisable values."""
    return tensors_of(step), _plain(step)


def tensors_of(step: Step | UShapeStep) -> dict[str, Tensor]:
    """Return all tensors of a step, by their names in the file."""
    tensors: dict[str, Tensor] = {}
    if isinstance(step, UShapeStep):
        for client, messages in step.messages.items():
            _put(tensors, f"messages.{client}", messages)
            tensors[f"mask.{client}"] = step.masks[client]
            _put(tensors, f"outputs.{client}", step.outputs.get(client, ()))
            _put(tensors, f"returned.{client}", step.returned.get(client, ()))
            _put(tensors, f"gradients.{client}", step.gradients.get(client, ()))
        return tensors
    for client, upload in step.uploads.items():
        _put(tensors, f"smashed.{client}", upload.smashed)
        if isinstance(upload.labels, Tensor):
            tensors[f"labels.{client}"] = upload.labels
        else:
            _put(tensors, f"soft.{client}", upload.labels)
    _put(tensors, "step", {"gradient": step.gradient, "loss": step.loss})
    return tensors


def _plain(step: Step | UShapeStep) -> dict[str, Any]:
    place = [step.server_round, step.number]
    if isinstance(step, UShapeStep):
        counts = {str(client): len(messages) for client, messages in step.messages.items()}
        return {"shape": "U", "place": place, "messages": counts, "drawn": text_keys(step.drawn)}
    plan = step.plan
    return {
        "shape": "L",
        "place": place,
        "smashed-shape": asdict(plan.shape),
        "passes": [
            [[[m.client, m.share.to_wire()] for m in group.members] for group in groups]
            for groups in plan.passes
        ],
        "shuffle-seed": plan.seed if isinstance(plan, ShuffledPlan) else None,
        "drawn": text_keys(step.drawn),
    }


def unpack_step(
    tensors: Mapping[str, Tensor], meta: Mapping[str, Any], shares: Iterable[type[Share]] = ()
) -> Step | UShapeStep:
    """Rebuild a step from the result of `pack_step`.

    Parameters
    ----------
    shares
        Kinds of shares besides the built-in ones.

    Raises
    ------
    KeyError, TypeError, ValueError
        If the values do not describe a step.
    """
    if meta["shape"] == "U":
        return _unpack_messages(tensors, meta)
    share_kinds = (*SHARES, *GROUP_SHARES, *shares)
    shape = dict(meta["smashed-shape"])
    if shape["grid"] is not None:
        rows, columns = shape["grid"]
        shape["grid"] = (int(rows), int(columns))
    plan = Plan(
        SmashedShape(**shape),
        tuple(
            tuple(
                Group(
                    tuple(
                        Member(int(c), share_from_wire(share, share_kinds)) for c, share in members
                    )
                )
                for members in groups
            )
            for groups in meta["passes"]
        ),
    )
    if meta["shuffle-seed"] is not None:
        plan = grow(plan, ShuffledPlan, seed=int(meta["shuffle-seed"]))
    _check_size(plan.shape)
    server_round, number = meta["place"]
    uploads = {
        client: Upload(
            _list(tensors, f"smashed.{client}", len(plan.passes)),
            tensors[f"labels.{client}"]
            if f"labels.{client}" in tensors
            else _list(tensors, f"soft.{client}", len(plan.passes)),
        )
        for client in sorted(plan.clients)
        if any(name.startswith(f"smashed.{client}.") for name in tensors)
    }
    for client, upload in uploads.items():
        _check_upload(plan, client, upload)
    gradient = tensors.get("step.gradient")
    if gradient is not None and gradient.shape[1:] != plan.shape.size[1:]:
        raise ValueError(f"its gradient has shape {tuple(gradient.shape)}")
    return Step(
        int(server_round),
        int(number),
        plan,
        uploads,
        gradient,
        tensors.get("step.loss"),
        whole_keys(meta["drawn"]),
    )


def _check_size(shape: SmashedShape) -> None:
    """Raise ValueError if smashed data have no such shape: masks are drawn for it."""
    sizes, others = shape.size, (shape.prefix, shape.classes)
    if any(type(size) is not int or size < 0 for size in (*sizes, *others)):
        raise ValueError(f"its smashed data have the shape {sizes!r:.80}")
    if not 1 <= math.prod(sizes) <= MAX_SMASHED:
        raise ValueError(f"its smashed data have {math.prod(sizes)!r:.80} numbers")


def _check_upload(plan: Plan, client: int, upload: Upload) -> None:
    """Raise ValueError if what a client uploaded is not what the plan had it send."""
    batch = plan.shape.batch
    for share, smashed in zip(plan.shares(client), upload.smashed, strict=True):
        expected = None if share is None else tuple(share.upload_shape(plan.shape.size))
        shape = None if smashed is None else tuple(smashed.shape)
        if shape != expected:
            raise ValueError(f"client {client} uploaded the shape {shape}; expected {expected}")
    soft = [upload.labels] if isinstance(upload.labels, Tensor) else upload.labels
    if any(labels is not None and labels.shape[:1] != (batch,) for labels in soft):
        raise ValueError(f"client {client} has no labels of {batch} examples")


def _unpack_messages(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> UShapeStep:
    counts = {int(client): int(count) for client, count in meta["messages"].items()}
    if any(count > len(tensors) for count in counts.values()):
        raise ValueError(f"it has more messages than its {len(tensors)} arrays")

    def every(kind: str) -> dict[int, list[Tensor]]:
        listed = {c: _list(tensors, f"{kind}.{c}", count) for c, count in counts.items()}
        return {
            c: [t for t in entries if t is not None]
            for c, entries in listed.items()
            if any_of(entries)
        }

    def any_of(entries: Sequence[Tensor | None]) -> bool:
        return any(tensor is not None for tensor in entries)

    server_round, number = meta["place"]
    step = UShapeStep(
        int(server_round),
        int(number),
        messages=every("messages"),
        masks={client: tensors[f"mask.{client}"] for client in counts},
        outputs=every("outputs"),
        returned=every("returned"),
        gradients=every("gradients"),
        drawn=whole_keys(meta["drawn"]),
    )
    for client in counts:
        _check_alike(step, client)
    return step


def _check_alike(step: UShapeStep, client: int) -> None:
    """Raise ValueError if what is kept of a client's messages has another shape."""
    kinds = (step.messages, step.outputs, step.returned, step.gradients)
    tensors = [tensor for kind in kinds for tensor in kind.get(client, ()) if tensor is not None]
    shapes = {tuple(tensor.shape) for tensor in tensors}
    mask = tuple(step.masks[client].shape)
    if {shape[:2] for shape in shapes} != {mask} or len(shapes) > 1 or client not in step.drawn:
        raise ValueError(f"client {client} has messages and gradients of the shapes {shapes}")


def _put(
    tensors: dict[str, Tensor],
    name: str,
    values: Sequence[Tensor | None] | Mapping[str, Tensor | None],
) -> None:
    entries = values.items() if isinstance(values, Mapping) else enumerate(values)
    for key, tensor in entries:
        if tensor is not None:
            tensors[f"{name}.{key}"] = tensor


def _list(tensors: Mapping[str, Tensor], name: str, length: int) -> list[Tensor | None]:
    return [tensors.get(f"{name}.{index}") for index in range(length)]
