"""Law 7 over all mixers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from torch import Tensor

from flwr_splitmix.clients.split import batch_in_flight, graphs
from flwr_splitmix.strategies import CutMixSL
from flwr_splitmix.testing.laws import Toy, check_graphs_are_freed
from tests.laws.makers import NAMES, maker, toy_for

pytestmark = pytest.mark.usefixtures("frozen_objects")


@pytest.mark.parametrize("name", NAMES)
def test_every_mixer(name: str) -> None:
    many = 200 if name == "CutMixSFL" else 80  # what adds up does so in every step
    check_graphs_are_freed(maker(name), toy_for(name, clients=2), many=many)


def test_k_times_and_broadcast() -> None:
    toy = Toy(clients=3)
    check_graphs_are_freed(partial(CutMixSL, k_times=True, server_update="mean"), toy, many=80)
    check_graphs_are_freed(partial(CutMixSL, gradient="broadcast"), toy, many=80)


def test_the_law_notices_smashed_data_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    retained: list[Tensor] = []
    right = graphs.backward

    def hoarding(anchors: Any, *arguments: Any, **options: Any) -> bool:
        retained.extend(a for a in anchors if a is not None)
        return right(anchors, *arguments, **options)

    monkeypatch.setattr(batch_in_flight, "backward", hoarding)
    with pytest.raises(AssertionError, match=r"law 7, graphs are freed: .* more of shape"):
        check_graphs_are_freed(maker("PSL"), Toy(clients=2), few=5, many=20)
