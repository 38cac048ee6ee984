"""A node's operator is told once a run what the policy leaves open, or the node refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flwr_splitmix.attacks.images.embedding.patches import to_patches
from flwr_splitmix.mixers import FullShare, PatchShare, WeightedShare
from flwr_splitmix.testing.toy import Toy
from tests.links.node.crafted import PATCHES, STEPS_TO, CutAtABlock, copies, crafted
from tests.links.node.worst_server import TOY, Node, noisy, refused

SEEN_BY_ALL = Toy(clients=1, batch_norm=False, examples=12, tests=6, prefix=1)
"""Its prefix token tells of every patch."""

SPREADS = f"let a patch spread: at least {SEEN_BY_ALL.geometry.tokens} tokens depend on"
UNLIMITED = "allow-plain = false and no max-epsilon"


def half(toy: Toy, **options: Any) -> PatchShare:
    share = {"prefix": toy.prefix, "seed": 1, "start": 0, "stop": toy.patches // 2, **options}
    return PatchShare(lam=0.5, patches=toy.patches, **share)


def warnings(caplog: pytest.LogCaptureFixture, of: str) -> int:
    return sum(of in each.getMessage() for each in caplog.records if each.levelname == "WARNING")


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize(
    "config", [{}, {"allow-training": False}, {"link-via": "mixer.example:9444"}]
)
def test_a_patch_that_spreads_before_the_cut_is_told_once_a_run(
    config: dict[str, Any], noise: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path, config, SEEN_BY_ALL)
    plan = [noisy(half(SEEN_BY_ALL)) if noise else half(SEEN_BY_ALL).to_wire()]
    for number in (1, 2):  # two rounds are two processes
        node.begin(server_round=number, state_round=number - 1)
        assert all(node.step(plan, step).reply for step in range(2))
        node.end()
        assert warnings(caplog, SPREADS) == 1
    node.begin(run="another")
    assert node.step(plan).reply
    node.end()
    assert warnings(caplog, SPREADS) == 2


@pytest.mark.parametrize(
    ("toy", "share"),
    [
        (TOY, half(TOY)),
        (SEEN_BY_ALL, FullShare()),
        (SEEN_BY_ALL, WeightedShare(lam=0.5)),
    ],
    ids=["embedding", "alone", "mixup"],
)
def test_nothing_is_said_where_no_patch_spreads_or_is_left_out(
    toy: Toy, share: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path, {"allow-spreading": False}, toy)
    node.begin()
    assert node.step([share.to_wire()]).reply
    node.end()
    assert not warnings(caplog, "spread")


def test_a_node_refuses_masks_of_patches_that_spread(tmp_path: Path) -> None:
    node = Node(tmp_path, {"allow-spreading": False}, SEEN_BY_ALL)
    for _ in range(2):
        node.begin()
        for number in range(2):
            outcome = node.step([half(SEEN_BY_ALL).to_wire()], number)
            refused(outcome, f"allow-spreading = false, and layers before the cut {SPREADS}")
        node.end(finish=False)
    assert "allow-spreading" in node.audit()[-1]["refused"]


def test_what_was_allowed_before_is_refused_when_the_policy_changes(tmp_path: Path) -> None:
    node = Node(tmp_path, {}, SEEN_BY_ALL)
    node.begin()
    assert node.step([half(SEEN_BY_ALL).to_wire()]).reply
    node.end()
    node.config["allow-spreading"] = False
    node.begin(server_round=2, state_round=1)
    refused(node.step([half(SEEN_BY_ALL).to_wire()]), "allow-spreading = false")
    node.end(finish=False)


class Deaf(nn.Module):
    """A lower segment of which no trial tells anything."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TOY.lower()

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.inner(torch.zeros_like(inputs))


def test_a_segment_that_hides_it_counts_as_one_that_spreads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for allowed in (True, False):
        node = Node(tmp_path / str(allowed), {"allow-spreading": allowed})
        node.lower = Deaf()
        node.begin()
        outcome = node.step([half(TOY).to_wire()])
        if allowed:
            assert outcome.reply
            assert warnings(caplog, "could not be determined whether a patch spreads") == 1
        else:
            refused(outcome, "could not be determined whether a patch spreads to other tokens")
        node.end(finish=False)


@pytest.mark.parametrize("allowed", [True, False])
def test_crafted_weights_send_patches_that_a_mask_leaves_out(
    allowed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such weights may be the run's first ones, which such a node takes."""
    maker: Any = CutAtABlock()
    config = {"allow-training": False, "allow-averaging": False, "allow-spreading": allowed}
    node = Node(tmp_path, config, maker)
    lower = maker.lower()
    lower.load_state_dict(crafted(lower))
    node.begin(arrays=crafted(lower))
    share = PatchShare(lam=0.5, patches=PATCHES, prefix=1, seed=1, start=0, stop=PATCHES // 2)
    outcome = node.step([share.to_wire()])
    if not allowed:
        refused(outcome, f"let a patch spread: at least {PATCHES + 1} tokens depend on")
        node.end(finish=False)
        return
    assert warnings(caplog, f"let a patch spread: at least {PATCHES + 1} tokens depend on") == 1
    assert outcome.reply is not None
    positions = share.positions(4)
    smashed = torch.zeros(4, PATCHES, lower.geometry.width)
    smashed[:, positions] = outcome.reply["smashed"][0][:, 1:].detach()
    read = copies(smashed, lower)
    patches = to_patches(node.client.batch(0)[0], (8, 8))
    left_out = {*range(PATCHES)} - set(positions.tolist())
    revealed = set()
    for token in positions.tolist():
        for head, step in enumerate(STEPS_TO):
            patch = (token + step) % PATCHES
            # Pixels are normalised: their own variance is about 1.
            assert (read[:, token, head] - patches[:, patch]).abs().max() < 0.01
            revealed.add(patch)
    assert len(revealed & left_out) > 0.8 * len(left_out)
    node.end(finish=False)


@pytest.mark.parametrize(
    ("config", "times"),
    [
        ({"allow-plain": False}, 1),
        ({"allow-plain": False, "max-epsilon": 1e30}, 0),
        ({"max-epsilon": 1e30}, 0),
        ({}, 0),
    ],
)
def test_noise_of_the_runs_choice_is_told_to_be_no_limit(
    config: dict[str, Any], times: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At an epsilon of 1e14 all leaves the node."""
    node = Node(tmp_path, config)
    next_to_none = noisy(sigma_s=1e-3, sigma_y=1e-3, clip="patch", clip_norm=1000.0)
    for number in (1, 2):
        node.begin(server_round=number, state_round=number - 1)
        outcome = node.step([next_to_none])
        assert outcome.reply
        assert warnings(caplog, UNLIMITED) == times
        node.end()
    assert node.client.epsilon is None or node.client.epsilon > 1e12
