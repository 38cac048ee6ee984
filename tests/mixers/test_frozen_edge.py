"""Frozen edges: ids up, nothing back, and the mixture is that of plain split learning."""

from __future__ import annotations

import numpy as np
import torch

from flwr_splitmix.mixers import FrozenEdge, IdShare, NoMixing, SmashedShape, Upload

SHAPE = SmashedShape(4, 6, 3)


def test_every_client_sends_everything_with_ids_for_labels() -> None:
    plan = FrozenEdge().plan([2, 5], SHAPE, np.random.default_rng(0))
    for client in (2, 5):
        (share,) = plan.shares(client)
        assert isinstance(share, IdShare)
        assert share.label_kind == "ids"
        assert not share.learns
        smashed = torch.randn(SHAPE.size)
        assert share.upload(smashed)[0] is smashed
        assert plan.for_node(client) == [{"share": "ids", "lam": 1.0, "learns": False}]


def test_the_mixture_is_that_without_mixing_and_no_gradient_goes_back() -> None:
    rng = np.random.default_rng(0)
    plan = FrozenEdge().plan([0, 1], SHAPE, rng)
    uploads = {i: Upload([torch.randn(SHAPE.size)], torch.tensor([0, 1, 1, i])) for i in (0, 1)}
    mixed = FrozenEdge().merge(uploads, plan, num_classes=2)
    plain = NoMixing().merge(uploads, NoMixing().plan([0, 1], SHAPE, rng), num_classes=2)
    assert torch.equal(mixed.smashed, plain.smashed)
    assert torch.equal(mixed.targets, plain.targets)
    back = FrozenEdge().split(torch.ones_like(mixed.smashed), mixed, plan)
    assert back == {0: [None], 1: [None]}
