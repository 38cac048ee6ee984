"""Timing of a mixer alone: plan, share, merge and split of one step's tensors, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.apps.steps.step_app.lenet import BATCH, CLASSES, CLIENTS, images
from flwr_splitmix.clients.split.input_mixing import mix_inputs
from flwr_splitmix.data.examples import Example
from flwr_splitmix.mixers import (
    SHARES,
    InputShare,
    Mixer,
    SmashedShape,
    Upload,
    share_from_wire,
)
from flwr_splitmix.segments import Geometry

PARTS = ("plan", "share", "merge", "split")
CHANNELS = 3

Told = Mapping[str, Any] | None
Anchors = list[Tensor | None]


class MixerParts:
    """A mixer, and random smashed data of the shape that a model's clients produce.

    In "plan", the server draws a plan and makes each client's part of it as plain values. In
    "share", all clients make shares from plain values, mix inputs if a share requires it, make
    uploads and labels, and backpropagate gradients through uploads. "merge" and "split" are the
    server's again.
    """

    def __init__(self, mixer: Mixer, geometry: Geometry) -> None:
        self.mixer = mixer
        self.shape = SmashedShape(
            BATCH, geometry.patches, geometry.width, geometry.prefix, geometry.grid, CLASSES
        )
        self.rng = np.random.default_rng(0)
        self.kinds = (*SHARES, *mixer.shares)
        self.smashed = [torch.randn(self.shape.size, requires_grad=True) for _ in range(CLIENTS)]
        self.batches: list[Example] = [images(i, CHANNELS, BATCH) for i in range(CLIENTS)]

    def run(self) -> dict[str, float]:
        """Run one step and return the milliseconds of each part, all clients together."""
        marks = [perf_counter()]
        plan = self.mixer.plan(range(CLIENTS), self.shape, self.rng)
        node_plans = [plan.for_node(client) for client in range(CLIENTS)]
        marks.append(perf_counter())
        pairs = [self._upload(client, node_plans[client]) for client in range(CLIENTS)]
        marks.append(perf_counter())
        uploads = {client: upload for client, (upload, _) in enumerate(pairs)}
        mixed = self.mixer.merge(uploads, plan, num_classes=CLASSES)
        marks.append(perf_counter())
        gradients = self.mixer.split(mixed.smashed, mixed, plan)
        marks.append(perf_counter())
        for client, (_, anchors) in enumerate(pairs):
            self._backward(client, anchors, gradients[client])
        marks.append(perf_counter())
        planned, shared, merged, split, back = 1000 * np.diff(marks)
        return dict(zip(PARTS, map(float, (planned, shared + back, merged, split)), strict=True))

    def _upload(self, client: int, node_plan: Sequence[Told]) -> tuple[Upload, Anchors]:
        shares = [
            None if values is None else share_from_wire(values, self.kinds) for values in node_plan
        ]
        smashed, (_, labels) = self.smashed[client], self.batches[client]
        mixing = next((share for share in shares if isinstance(share, InputShare)), None)
        if mixing is not None:
            _, labels = mix_inputs(mixing, self.batches.__getitem__)
        pairs = [(None, None) if s is None else s.upload(smashed) for s in shares]
        uploads = [None if upload is None else upload.detach() for upload, _ in pairs]
        soft_labels = [
            None if s is None else s.upload_labels(labels, smashed.dtype) for s in shares
        ]
        soft = any(s is not None and s.label_kind == "soft" for s in shares)
        return Upload(uploads, soft_labels if soft else labels), [anchor for _, anchor in pairs]

    def _backward(self, client: int, anchors: Anchors, gradients: Sequence[Tensor | None]) -> None:
        pairs = [
            (anchor, gradient)
            for anchor, gradient in zip(anchors, gradients, strict=True)
            if anchor is not None and gradient is not None
        ]
        if pairs:
            outputs, weights = zip(*pairs, strict=True)
            torch.autograd.grad(outputs, self.smashed[client], weights)
