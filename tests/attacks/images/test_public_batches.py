"""How many public images an attack releases together to learn from."""

from __future__ import annotations

import pytest

from flwr_splitmix.attacks.images.networks.example import SMALL_BATCH, whole_releases
from flwr_splitmix.mixers import FrozenEdge, Mixer, NoMixing
from tests.attacks.images.conftest import Bench


class Whole(NoMixing):
    """Somebody's mixer whose clients exchange something within a batch."""

    needs_whole_batch = True


@pytest.mark.parametrize(
    ("mixer", "together"),
    [
        (NoMixing(), SMALL_BATCH),
        (FrozenEdge(), 24),
        (Whole(), 24),
    ],
    ids=["none", "edge", "own"],
)
def test_they_are_as_many_as_of_a_client_if_samples_of_a_batch_depend_on_each_other(
    bench: Bench, mixer: Mixer, together: int
) -> None:
    view = bench.view(mixer, "upper only", batch_size=24)
    assert {len(each) for each in whole_releases(view, bench.public, 96, 1)} == {together}
