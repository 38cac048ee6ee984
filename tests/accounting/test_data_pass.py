"""Where a client stands in its data, as far as it says."""

from __future__ import annotations

from typing import Any

import pytest

from flwr_splitmix.accounting.data_position import DataPosition
from flwr_splitmix.description import SplitDescription, read_description

SAID = {"batch-size": 4, "num-examples": 12, "prefix": 0, "patches": 9, "width": 5}


@pytest.mark.parametrize(
    ("fields", "copies"),
    [
        ({"state-round": 0}, 1),
        ({"state-round": 1}, 2),
        ({"state-round": 1, "drawn": 3}, 1),
        ({"state-round": 1, "drawn": 4}, 2),
    ],
    ids=str,
)
def test_a_client_met_after_a_round_may_stand_amid_a_pass_unless_it_says_where(
    fields: dict[str, Any], copies: int
) -> None:
    """Taken for the beginning of a pass, a record that occurs twice would be charged once."""
    described = read_description({**SAID, **fields})
    assert isinstance(described, SplitDescription)
    met = DataPosition.met(described)
    met.begin_round(2, described, [], same_object=False)
    assert met.copies == copies
