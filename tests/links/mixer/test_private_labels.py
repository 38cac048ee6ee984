"""A server that chooses the number of classes, in order to learn which labels are whose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flwr_splitmix import adamw
from flwr_splitmix.links import MixerLink
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.strategies import CutMixSL
from tests.links.mixer.test_view import Everything
from tests.links.mixer.third_party import SEED, TOY, grid_of, start

Start = Callable[..., MixerServer]
LinkTo = Callable[..., MixerLink]


def test_labels_that_are_no_classes_are_told_of_no_client(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as "client 0: labels lie in 0..2, expected 0..1" among the failures of a round."""
    observer = Everything()
    strategy = CutMixSL(
        replace(TOY, classes=2).upper(),
        min_patches=1,
        link=link_to(start_mixer()),
        optimizer=adamw(0.01),
        device="cpu",
        seed=SEED,
        observers=[observer],
    )
    grid = grid_of(tmp_path / "nodes")
    start(strategy, grid, 1)
    grid.wait()
    (event,) = observer.rounds
    assert event.failures == {}
    mixed = [step.mixed for step in observer.steps if step.mixed is not None]
    sums = torch.cat([each.targets.sum(1) for each in mixed])
    assert 0 < int((sums < 0.99).sum()) < len(sums)
    of_mixer = [message for message in caplog.messages if "labels lie in " in message]
    assert len(of_mixer) == len({message[:9] for message in of_mixer}) > 0
    assert all(message.startswith("client ") and "expected 0..1" in message for message in of_mixer)
    of_server = [message for message in caplog.messages if "sum to less than 1" in message]
    assert of_server == [
        "round 1: the labels of mixtures sum to less than 1, as nodes have labels that are not "
        "classes: pass a larger num_classes; the mixer's log says what they are"
    ]
