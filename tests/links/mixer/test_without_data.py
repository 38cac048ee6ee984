"""Rounds that a mixer cannot begin, as too few of the nodes that were drawn have data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from flwr_splitmix import adamw
from flwr_splitmix.clients import NO_DATA, ClientError, Order
from flwr_splitmix.links import LinkError, MixerLink
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.testing.agreement import Results, check_same_results
from tests.links.fake_grid import OneAtATime
from tests.links.mixer.third_party import TOY, grid_of, make, start

Start = Callable[..., MixerServer]
LinkTo = Callable[..., MixerLink]

HALF: dict[str, Any] = {"fraction_train": 0.5}
"""Two of the four clients take part in a round, and a mixture needs both."""


class OneEmpty(OneAtATime):
    """A client; client 1 has no training data."""

    empty = frozenset({1})

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        if order.client in self.empty:
            raise ClientError(NO_DATA)
        return super().attach(order, arrays)


class TwoEmpty(OneEmpty):
    """A client; clients 0 and 1 have no training data."""

    empty = frozenset({0, 1})


class OneFull(OneEmpty):
    """A client; only client 2 has training data."""

    empty = frozenset({0, 1, 3})


@pytest.mark.parametrize("kind", [OneEmpty, TwoEmpty])
def test_others_are_drawn_as_without_a_third_party(
    kind: type[OneEmpty],
    start_mixer: Start,
    link_to: LinkTo,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    local = make("CutMixSL", **HALF)
    local.fit(TOY.make_clients(adamw(0.01), kind), 4)
    caplog.clear()
    mixed = make("CutMixSL", link_to(start_mixer()), **HALF)
    grid = grid_of(tmp_path, kind=kind)
    start(mixed, grid, 4)
    grid.wait()
    for empty in kind.empty:
        assert re.search(f"clients? .*{empty}.* (has|have) no training data", caplog.text)
    local_results, mixed_results = (
        Results(each.rows, each.upper.state()[0]) for each in (local, mixed)
    )
    check_same_results(local_results, mixed_results)


def test_others_are_drawn_for_a_mixer_that_wants_more_than_the_server(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server would go on with the two of three that have data."""
    strategy = make("CutMixSL", link_to(start_mixer(least_members=3)), k=3, fraction_train=0.75)
    grid = grid_of(tmp_path, kind=OneEmpty)
    start(strategy, grid, 4)
    grid.wait()
    assert [row["clients_alive"] for row in strategy.rows] == [3, 3, 3, 3]
    assert "is drawn again: clients 0 and 2: the mixer at" in caplog.text


def test_a_run_without_two_clients_with_data_ends_and_names_both_reasons(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    grid = grid_of(tmp_path, kind=OneFull)
    with pytest.raises(LinkError) as ended:
        start(make("CutMixSL", link_to(start_mixer())), grid, 2)
    grid.wait()
    assert re.fullmatch(
        r"round 1: 0 clients are left, .* needs at least 2 \(its min_members\): clients 0, 1 and "
        rf"3: {NO_DATA}; client 2: the mixer at .* \(link-via\) refuses: 1 node is too few for a "
        "group of at least 2",
        str(ended.value),
    )
