"""One link to a mixer that several strategies have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flwr_splitmix.events import StepDone
from flwr_splitmix.links import LinkError, MixerLink
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.observers import Observer
from tests.links.mixer.nodes import OPENING
from tests.links.mixer.noisy import QUIET, elsewhere, noised
from tests.links.mixer.third_party import TOKEN, grid_of, secret, start


class Groups(Observer):
    """Notes how many mixtures each step has."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()

    def on_step(self, event: StepDone) -> None:
        assert event.mixed is not None
        self.numbers.add(len(event.mixed.sources))


def test_each_strategy_asks_for_its_own_groups_and_hears_of_its_own_noise(
    start_mixer: Callable[..., MixerServer], link_to: Callable[..., MixerLink], tmp_path: Path
) -> None:
    """Neither the groups nor the ledger of the first one change when the second one is made."""
    link = link_to(start_mixer())
    pairs, fours = Groups(), Groups()
    first = noised("DPCutMixSL", link, k=2, observers=[pairs])
    second = noised("DPCutMixSL", link, k=4, observers=[fours])
    for number, strategy in enumerate((first, second)):
        grid = grid_of(tmp_path / f"nodes-{number}", QUIET)
        start(strategy, grid, 1, QUIET)
        grid.wait()
    assert (pairs.numbers, fours.numbers) == ({2}, {1})
    assert elsewhere(first).epsilon == first.rows[0]["epsilon"]
    assert elsewhere(second).epsilon == second.rows[0]["epsilon"]
    assert None not in (first.epsilon(), second.epsilon())
    assert first.epsilon() != second.epsilon()


def test_a_run_does_not_ask_what_the_run_before_it_has_asked(tmp_path: Path) -> None:
    link = MixerLink("127.0.0.1:9444", secret(tmp_path / "token", TOKEN))
    link.request(OPENING["mixing"], None)
    link.open(None)
    link.close()
    with pytest.raises(LinkError, match="this strategy has nothing that is mixed"):
        link.open(None)
