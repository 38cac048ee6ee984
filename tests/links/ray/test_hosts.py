"""Hosts are placed where there is room, and those of lost Ray nodes are replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flwr_splitmix.links.ray.hosts import Host, Hosts


def test_hosts_of_lost_nodes_are_replaced_in_their_places_under_new_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(self: Hosts, ray: Any, number: int, nodes: Any) -> list[Host]:
        return [Host(next(self._names), node["NodeID"], object()) for node in nodes * number]

    nodes = [{"NodeID": "left", "Alive": True}, {"NodeID": "gone", "Alive": False}]
    monkeypatch.setattr(Hosts, "_wait_for_ray", lambda self: SimpleNamespace(nodes=lambda: nodes))
    monkeypatch.setattr(Hosts, "_started", start)
    hosts = Hosts(0, 0.0, 1, None, 1.0)
    homes = ("gone", "left", "gone")
    before = [Host(next(hosts._names), home, object()) for home in homes]
    hosts._hosts = list(before)
    hosts.replace_lost()
    assert [host.home for host in hosts._hosts] == ["left"] * 3
    assert hosts._hosts[1] is before[1]
    assert len({host.name for host in (*before, *hosts._hosts)}) == 5
    assert hosts.handles == [hosts.of(place).handle for place in range(3)]
    after = list(hosts._hosts)
    hosts.replace_lost()
    assert hosts._hosts == after


@pytest.mark.parametrize(
    ("gpus", "host_gpus", "homes"),
    [
        ([0, 0, 0], 0.0, "abca"),
        ([2, 1, 0], 0.5, "abab"),
        ([1, 1, 4], 1.0, "abcc"),
        ([0, 1, 0], 0.25, "bbbb"),
        ([1, 0, 0], 0.1, "aaaa"),
    ],
)
def test_hosts_take_turns_among_the_nodes_with_room(
    gpus: list[int], host_gpus: float, homes: str
) -> None:
    nodes = [
        {"NodeID": name, "Resources": {"CPU": 2.0, **({"GPU": float(n)} if n else {})}}
        for name, n in zip("abc", gpus, strict=True)
    ]
    placed = Hosts(4, host_gpus, 1, None, 1.0)._placed(nodes, 4)
    assert "".join(node["NodeID"] for node in placed) == homes
