"""The steps at a mixer, with nodes that fail in the midst of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from flwr_splitmix.description import read_description
from flwr_splitmix.links import Clients, LinkError
from flwr_splitmix.links.link import Outcome
from flwr_splitmix.mixer_process.opening import Opening
from flwr_splitmix.mixer_process.rules import MixerRules
from flwr_splitmix.mixer_process.steps import MixedSteps
from flwr_splitmix.mixers import Mixup
from flwr_splitmix.mixers.described import describe
from tests.links.mixer.nodes import DESCRIPTION, FIRST, OPENING


class Nodes(Clients):
    """Three nodes, of which some fail when they are asked to upload."""

    def __init__(self, failing: set[int]) -> None:
        super().__init__(1, dict.fromkeys(range(3), read_description(DESCRIPTION)), {}, None)
        self.failing = failing

    def _exchange(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Outcome]:
        upload = {"smashed": [torch.ones(2, 6, 3).double()], "labels": torch.tensor([0, 1])}
        return {
            client: Outcome(None, "gone") if client in self.failing else Outcome(dict(upload))
            for client in payloads
        }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"least_members": 0}, "--least-members is 0; it must be at least 2"),
        ({"least_members": 1}, "--least-members is 1; it must be at least 2"),
        ({"least_members": 2.5}, "--least-members is 2.5; it must be a whole number"),
        ({"least_patches": -3}, "--least-patches is -3; it must be at least 1"),
        ({"most_ratio": 0.0}, "--most-ratio is 0.0; it must be a number above 0, at most 1"),
        ({"most_ratio": 1.1}, "--most-ratio is 1.1; it must be a number above 0, at most 1"),
        ({"most_ratio": "all"}, "--most-ratio is 'all'; it must be a number"),
    ],
)
def test_rules_that_protect_nobody_or_are_none_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LinkError, match=message):
        MixerRules(**options)


@pytest.mark.parametrize(("failing", "mixed"), [(set(), True), ({1}, False)])
def test_a_group_that_has_shrunk_keeps_to_the_largest_ratio_too(
    failing: set[int], mixed: bool
) -> None:
    """Of three thirds two are left, a half each, which may be more than is allowed."""
    mixer = Mixup(k=3, alpha=None)
    opening = Opening.read(
        {**OPENING, "mixing": describe(mixer), "nodes": {"0": 100, "1": 101, "2": 102}}
    )
    rules = MixerRules(seed=1, most_ratio=0.45)
    steps = MixedSteps(1, rules, opening, mixer, None, Nodes(failing), None)
    assert bool(steps.take(FIRST)) is mixed
