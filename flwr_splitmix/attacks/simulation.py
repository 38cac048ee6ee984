"""The pass of images through a method as in training, but without any update.

An attacker runs it on public images; the bench runs it on victims that were held out.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.knowledge import Knowledge, Lowers
from flwr_splitmix.attacks.recording.reader import StepReader
from flwr_splitmix.attacks.recording.steps import Batches, Step
from flwr_splitmix.attacks.release import Adversary, Simulated
from flwr_splitmix.clients.split.input_mixing import mix_inputs
from flwr_splitmix.data.examples import Example
from flwr_splitmix.labels import target_loss
from flwr_splitmix.mixers import InputShare, Plan, Share, SmashedShape, Upload
from flwr_splitmix.seeding import derive_seed, secrets_are_seeded, seeded_draws, seeded_secrets
from flwr_splitmix.segments.vision.patch_shuffle import PatchShuffle, draw_order, patches_kept

CPU = torch.device("cpu")


def simulate(
    knowledge: Knowledge,
    images: Tensor,
    labels: Tensor,
    generator: np.random.Generator,
    *,
    lowers: Lowers | None,
    adversary: Adversary,
    batch_size: int,
    gradients: bool = False,
) -> list[Simulated]:
    """Return an adversary's releases of images; see `Knowledge.simulate`."""
    reader = StepReader(knowledge.mixer, knowledge.num_classes, adversary)
    releases = []
    for step, batches, orders in passes(
        knowledge,
        images,
        labels,
        generator,
        lowers=lowers,
        batch_size=batch_size,
        gradients=gradients,
    ):
        rows = batches.get(reader.member)
        own_labels = None if rows is None else labels[rows]
        for release, origin in zip(
            reader.releases(step, own_labels), reader.origins(step, batches, orders), strict=True
        ):
            values = {f.name: getattr(release, f.name) for f in fields(release)}
            releases.append(Simulated(**values, origin=origin))
    return releases


def passes(
    knowledge: Knowledge,
    images: Tensor,
    labels: Tensor,
    generator: np.random.Generator,
    *,
    lowers: Lowers | None,
    batch_size: int,
    gradients: bool = False,
    server_round: int = 0,
    include: int | None = None,
    owners: Tensor | None = None,
) -> Iterator[tuple[Step, Batches, Mapping[int, Tensor]]]:
    """Pass images through lower segments and mixer, step by step, in random order.

    Parameters
    ----------
    images, labels
        float (n, C, H, W), 0 to 1, and int64 (n,): n >= 1.
    lowers
        One lower segment, or several by client, from which each step draws as many as are mixed;
        None makes fresh ones.
    gradients
        Whether to compute loss and gradient of each row with the upper segment, without training.
    include
        A client that takes part in every step.
    owners
        int64 (n,): the client of each image, which alone releases it; None lets every step draw.

    Yields
    ------
    A step; the positions of each client's images; the orders of each client's frozen edge.
    """
    clients = max(knowledge.k, knowledge.mixer.min_members)
    order = generator.permutation(len(images))
    named = clients if owners is None else max(clients, int(owners.max()) + 1)
    segments = _segments(knowledge, lowers, named, generator)
    if include is not None and include not in segments:
        raise ValueError(f"unknown client {include}; available: {sorted(segments)}")
    members = _Members(sorted(segments), clients, include, generator)
    if owners is None:
        turns = _of_any(order, members, batch_size)
    else:
        turns = _of_owners(order, owners.numpy()[order], members, batch_size)
    geometry = knowledge.geometry
    upper = None
    if gradients:
        if knowledge.upper is None:
            raise ValueError("gradients need the upper segment, which this adversary does not have")
        upper = copy.deepcopy(
            knowledge.upper
        ).train()  # a copy: training mode may change its buffers
    for at, rows_of in enumerate(turns):
        batches = {client: torch.from_numpy(rows.copy()) for client, rows in rows_of.items()}
        shape = SmashedShape(
            len(next(iter(batches.values()))), geometry.patches, geometry.width, geometry.prefix,
            geometry.grid, knowledge.num_classes,
        )  # fmt: skip
        plan = knowledge.mixer.plan(sorted(batches), shape, generator)
        inputs = {
            client: (knowledge.normalise(images[rows].float()), labels[rows])
            for client, rows in batches.items()
        }
        seed = int(generator.integers(2**62))
        uploads, orders = _uploads(segments, inputs, plan, seed)
        gradient = loss = None
        if upper is not None:
            device = next((p.device for p in upper.parameters()), CPU)
            with seeded_draws(device, derive_seed(seed, "upper segment")):
                gradient, loss = _gradients(knowledge, upper, uploads, plan)
        step = Step(server_round, at, plan, uploads, gradient, loss, ids=batches)
        yield step, batches, orders


def _segments(
    knowledge: Knowledge, lowers: Lowers | None, clients: int, generator: np.random.Generator
) -> dict[int, nn.Module]:
    """Return a copy for each client: training mode may change its buffers."""
    if lowers is None:
        segments = {
            c: knowledge.fresh_lower(int(generator.integers(2**31))) for c in range(clients)
        }
    elif not isinstance(lowers, Mapping):
        segments = {client: copy.deepcopy(lowers) for client in range(clients)}
    elif len(lowers) >= clients:
        segments = {client: copy.deepcopy(segment) for client, segment in lowers.items()}
    else:
        available = list(lowers.values())
        segments = {
            client: copy.deepcopy(available[client % len(available)]) for client in range(clients)
        }
    return {client: segment.train() for client, segment in segments.items()}


@dataclass(frozen=True)
class _Members:
    """Draws the clients of a step."""

    clients: Sequence[int]
    number: int
    include: int | None
    generator: np.random.Generator

    def drawn(self, remaining: Mapping[int, int] | None = None) -> list[int]:
        """Draw them; if it is known how many images each has left, those with the most."""
        names = [client for client in self.clients if client != self.include]
        others = [int(client) for client in self.generator.permutation(names)]
        if remaining is not None:
            others.sort(key=lambda client: -remaining[client])
        first = [] if self.include is None else [self.include]
        return sorted([*first, *others][: self.number])


def _of_any(
    order: np.ndarray, members: _Members, batch_size: int
) -> Iterator[dict[int, np.ndarray]]:
    """Deal images to the clients of each step, some twice to fill the last."""
    batch = min(batch_size, math.ceil(len(order) / members.number))
    steps = math.ceil(len(order) / (members.number * batch))
    for rows in np.resize(order, (steps, members.number, batch)):
        yield dict(zip(members.drawn(), rows, strict=True))


def _of_owners(
    order: np.ndarray, owners: np.ndarray, members: _Members, batch_size: int
) -> Iterator[dict[int, np.ndarray]]:
    """Deal each client its own images until all are dealt; a client that must wait repeats some.

    A client without images fills steps with others'.
    """
    client_rows = {client: order[owners == client] for client in members.clients}
    remaining = {client: len(rows) for client, rows in client_rows.items()}
    batch = min(batch_size, max(remaining.values()))
    dealt = dict.fromkeys(client_rows, 0)
    while any(number > 0 for client, number in remaining.items() if client != members.include):
        step = {}
        for client in members.drawn(remaining):
            at = range(dealt[client], dealt[client] + batch)
            step[client] = np.take(
                client_rows[client] if len(client_rows[client]) else order, at, mode="wrap"
            )
            dealt[client] += batch
            remaining[client] -= batch
        yield step


def _uploads(
    segments: Mapping[int, nn.Module], inputs: Mapping[int, Example], plan: Plan, seed: int
) -> tuple[dict[int, Upload], dict[int, Tensor]]:
    """Do what clients do in a step; noise and shuffles are determined by the seed."""
    uploads, orders = {}, {}
    with torch.no_grad(), seeded_draws(CPU, seed), seeded_secrets():
        for client in inputs:
            segment, shares = segments[client], plan.shares(client)
            images, labels = _mixed_inputs(client, shares, inputs)
            device = next((p.device for p in segment.parameters()), CPU)
            with ShuffleWatch(segment) as watch:
                smashed = segment(images.to(device)).cpu()
            if watch.orders:
                orders[client] = watch.orders[-1]
            payloads = [None if s is None else s.upload(smashed)[0] for s in shares]
            kinds = {share.label_kind for share in shares if share is not None}
            soft = [None if s is None else s.upload_labels(labels, smashed.dtype) for s in shares]
            uploads[client] = Upload(payloads, soft if "soft" in kinds else labels)
    return uploads, orders


def _mixed_inputs(
    client: int, shares: list[Share | None], inputs: Mapping[int, Example]
) -> Example:
    mixing = next((share for share in shares if isinstance(share, InputShare)), None)
    return inputs[client] if mixing is None else mix_inputs(mixing, inputs.__getitem__)


def _gradients(
    knowledge: Knowledge, upper: nn.Module, uploads: Mapping[int, Upload], plan: Plan
) -> tuple[Tensor, Tensor]:
    """Return the gradient of each group's mean loss at the mixture, and each row's loss."""
    mixed = knowledge.mixer.merge(uploads, plan, num_classes=knowledge.num_classes)
    device = next((p.device for p in upper.parameters()), CPU)
    with torch.enable_grad():
        smashed = mixed.smashed.to(device).requires_grad_()
        rows = target_loss(
            upper(smashed),
            mixed.targets.to(device),
            multi_label=knowledge.multi_label,
            loss=knowledge.loss,
            reduction="none",
        )
        (gradient,) = torch.autograd.grad(rows.sum() / plan.shape.batch, smashed)
    return gradient.cpu(), rows.detach().cpu()


class ShuffleWatch:
    """Records, at the client, the orders that a frozen edge draws: for scores and simulations.

    Secrets must be seeded, as the draw is repeated from the same state of the generator. If they
    come from the operating system, nothing is recorded.

    Parameters
    ----------
    newest
        How many orders are kept.

    Attributes
    ----------
    orders
        The newest ones, int64 (b, N), one per forward pass in training mode; see `Origin.order`.
    passes
        Number of these passes so far.
    """

    def __init__(self, segment: nn.Module, newest: int = 1) -> None:
        self.orders: deque[Tensor] = deque(maxlen=newest)
        self.passes = 0
        self._edges = [m for m in segment.modules() if isinstance(m, PatchShuffle)]

    def __enter__(self) -> ShuffleWatch:
        self._hooks = [edge.register_forward_pre_hook(self._see) for edge in self._edges]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _see(self, edge: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if not secrets_are_seeded() or not edge.training:
            return
        assert isinstance(edge, PatchShuffle)
        batch, patches, _ = arguments[0].shape
        kept_patches = patches_kept(patches, edge.kappa)
        state = torch.get_rng_state()
        order = draw_order(batch, patches, kept_patches)
        torch.set_rng_state(state)
        first = torch.arange(batch).unsqueeze(1) * patches
        # Without exchange in the batch, number the patches within each image.
        self.orders.append(order - first if kept_patches == patches else order)
        self.passes += 1
