"""A node's policy is never absent by mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.privacy.policy import NodePolicy, PolicyError


@pytest.mark.parametrize("path", ["", " ", 0, False, True, None, 3])
def test_a_policy_that_names_no_file_is_refused(path: Any) -> None:
    with pytest.raises(PolicyError, match=re.escape(f"privacy-policy is {path!r}, so this node")):
        NodePolicy.of_node({"privacy-policy": path})


@pytest.mark.parametrize("key", ["max-epsilon", "delta"])
def test_a_number_that_no_float_can_be_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=f"{key} is 1000"):
        NodePolicy.of_node({key: 10**400})
    file = tmp_path / "policy.toml"
    for digits, message in ((400, f"{key} is 1000"), (5000, "is not a TOML file")):
        file.write_text(f"{key} = 1{'0' * digits}\n", encoding="utf-8")
        with pytest.raises(PolicyError, match=message):
            NodePolicy.of_node({"privacy-policy": str(file)})
