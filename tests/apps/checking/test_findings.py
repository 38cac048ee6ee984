"""The report on the clients' data."""

from __future__ import annotations

import pytest

from flwr_splitmix.apps.checking.findings import describe_clients
from flwr_splitmix.apps.checking.report import Report


@pytest.mark.parametrize(
    ("sizes", "fact"),
    [([600, 600], "2, with 600 training rows each"), ([5, 600], "2, with 5 to 600 training rows")],
)
def test_numbers_of_examples_are_a_range_only_where_they_differ(
    sizes: list[int], fact: str
) -> None:
    report = Report("app", nodes=2)
    assert describe_clients(report, sizes, 4, "training rows") == []
    assert report.facts["clients"] == fact
