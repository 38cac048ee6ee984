"""What the mixer does not hide is said at the server also if a third party runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from flwr_splitmix import adamw
from flwr_splitmix.links import MixerLink
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.strategies import CutMixSL
from flwr_splitmix.testing.toy import Toy
from tests.links.mixer.third_party import grid_of, start


@pytest.mark.parametrize("prefix", [0, 1])
def test_prefix_tokens_that_are_summed_and_not_masked_are_told_of_the_nodes(
    prefix: int,
    start_mixer: Callable[..., MixerServer],
    link_to: Callable[..., MixerLink],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A mixer elsewhere keeps the statement that it is made for several clients."""
    toy = Toy(clients=4, prefix=prefix)
    link = link_to(start_mixer())
    strategy = CutMixSL(
        toy.upper(), min_patches=1, link=link, optimizer=adamw(0.01), device="cpu", seed=1
    )
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        start(strategy, grid_of(tmp_path, toy), 2, toy)
    warnings = [message for message in caplog.messages if "prefix token" in message]
    assert len(warnings) == prefix
    beginning = "clients 0, 1, 2 and 3 send 1 prefix token of every image, "
    assert all(warning.startswith(beginning) and "not masked" in warning for warning in warnings)
    assert "left over" not in caplog.text
