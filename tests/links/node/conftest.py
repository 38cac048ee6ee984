"""A node with a budget of epsilon 1, as a fixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.links.node.worst_server import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node", {"max-epsilon": 1.0})
