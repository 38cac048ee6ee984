"""A server that mixes itself takes its clients' steps, too: trained lower segments are no secret.

It chooses the first weights and the optimizer, reads the first batch from the uploads by linear
algebra, and knows the gradients that it returns.
"""

from __future__ import annotations

import copy

import pytest
import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from flwr_splitmix import SplitClient, split_vision_model
from flwr_splitmix.attacks import Recorder
from flwr_splitmix.attacks.images.embedding.patches import to_images, to_patches
from flwr_splitmix.attacks.recording.reader import StepReader
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.optimizers import ScheduledOptimizer, adamw
from flwr_splitmix.schedule import constant
from flwr_splitmix.segments.vision.split_model import LowerSegment
from flwr_splitmix.strategies import PSL, CutMixSL, SplitStrategy

IMAGES = load_images("fashion-mnist-small")
CLIENTS, ROUNDS, STEPS, GRID, SHAPE = 2, 2, 6, (8, 8), (1, 32, 32)


def clients_of(lower: LowerSegment) -> list[SplitClient]:
    return [
        SplitClient(
            copy.deepcopy(lower),
            client_split(IMAGES, index, CLIENTS, samples=60)[0],
            batch_size=10,
            device="cpu",
            optimizer=adamw(lr=1e-3, weight_decay=0.05),
            schedule=constant,
        )
        for index in range(CLIENTS)
    ]


def read(tokens: Tensor, lower: LowerSegment) -> Tensor:
    """Return the patches (b, N, P) behind the tokens (b, N, d) of a patch embedding."""
    embedding = lower.get_parameter("embedding.patch_embed.proj.weight")
    with torch.no_grad():
        offset = lower(torch.zeros(1, *SHAPE))[0].double()
        inverse = torch.linalg.pinv(embedding.flatten(1).double())
    patches: Tensor = (tokens.double() - offset) @ inverse.T
    return patches


def weights_of(segment: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in segment.parameters()]).double()


@pytest.mark.parametrize("method", [PSL, CutMixSL])
def test_a_server_that_mixes_knows_the_lower_segments_that_it_does_not_average(
    method: type[SplitStrategy],
) -> None:
    first, upper = split_vision_model(depth=1, seed=0)
    recorder = Recorder()
    strategy = method(upper, observers=[recorder], steps_per_round=STEPS, seed=3)
    clients = clients_of(first)
    strategy.fit(clients, ROUNDS, initial_arrays=ArrayRecord(first.state_dict()))
    lowers = [copy.deepcopy(first).train() for _ in clients]
    optimizers = [ScheduledOptimizer(lower, adamw(1e-3, 0.05), constant) for lower in lowers]
    reader = StepReader(strategy.mixer, len(IMAGES.classes), "server")
    last: dict[int, Tensor] = {}
    by_the_first: dict[int, Tensor] = {}
    for step in recorder.trace.steps():
        assert isinstance(step, Step)
        for release in reader.releases(step):
            index, gradient = release.client, release.gradient
            assert index is not None
            assert gradient is not None
            mask = torch.ones(gradient.shape[:2]) if release.mask is None else release.mask
            last[index] = read(release.smashed, lowers[index]) * mask[..., None]
            by_the_first[index] = read(release.smashed, first)
            images = to_images(last[index], GRID, SHAPE).float()
            optimizers[index].zero_grad()
            (lowers[index](images) * gradient * mask[..., None]).sum().backward()
            optimizers[index].step(step.server_round - 1 + step.number / STEPS, ROUNDS)
    for number, (client, lower) in enumerate(zip(clients, lowers, strict=True)):
        data = client.batches.data
        rows = batch_indices(client.batches.examples, 10, strategy.seed, number, ROUNDS * STEPS - 1)
        patches = to_patches(torch.stack([data[int(row)][0] for row in rows]), GRID)
        sent_patches = last[number].any(-1)
        wrong = (last[number] - patches)[sent_patches].abs()
        assert len(wrong) >= 10 * 64 // 4  # patches of the last step, of normalised pixels
        assert wrong.max() < 1e-3
        assert (by_the_first[number] - patches)[sent_patches].abs().max() > 100 * wrong.max()
        moved = (weights_of(client.segment) - weights_of(first)).norm()
        assert moved > 0.1
        assert (weights_of(lower) - weights_of(client.segment)).norm() < 1e-5 * moved
