"""Keys of a node's configuration: a misspelt one must not leave the node unprotected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.node.keys import OPTIONAL, check_keys
from tests.links.node.worst_server import Node, noisy


@pytest.mark.parametrize(
    ("key", "intended"),
    [
        ("link_via", "link-via"),
        ("link-vai", "link-via"),
        ("link-vis", "link-via"),
        ("link-va", "link-via"),
        ("linkvia", "link-via"),
        ("LINK-VIA", "link-via"),
        ("link_via_ca", "link-via-ca"),
        ("state_dir", "state-dir"),
        ("statedir", "state-dir"),
        ("ssl_certfile", "ssl-certfile"),
        ("max_epsilon", "max-epsilon"),
        ("Max-Epsilon", "max-epsilon"),
        ("maximum-epsilon", "max-epsilon"),
        ("epsilon", "max-epsilon"),
        ("max-eps", "max-epsilon"),
        ("eps", "max-epsilon"),
        ("deltas", "delta"),
        ("allow-avraging", "allow-averaging"),
        ("allow-average", "allow-averaging"),
        ("allow-avg", "allow-averaging"),
        ("allow-eval", "allow-evaluation"),
        ("allow_bench", "allow-benchmark"),
        ("allow-plaintext", "allow-plain"),
        ("allow-train", "allow-training"),
        ("allow-spread", "allow-spreading"),
        ("allow_insecure", "allow-insecure"),
        ("link-insecure", "allow-insecure"),
        ("privacy_policy", "privacy-policy"),
    ],
)
def test_a_misspelt_key_is_named_with_the_one_that_is_meant(
    key: str, intended: str, tmp_path: Path
) -> None:
    """A node could dial what the server names, begin another ledger, or have no policy."""
    with pytest.raises(
        LinkError,
        match=f"has '{key}', which flwr-splitmix does not read.* did you mean '{intended}'",
    ):
        Node(tmp_path, {key: 1.0}).begin()


def test_keys_of_an_app_are_left_alone(tmp_path: Path) -> None:
    """Such as max-steps, which must not pass for a misspelt max-epsilon."""
    keys = (
        "num-partitions", "dataset", "test-dataset", "images", "data-path", "data_dir", "site",
        "hospital", "device", "cache-dir", "label", "public", "training-data", "seed", "alpha",
        "link-speed", "allow-download", "certificate", "max-steps", "max-epochs", "data-dir",
        "stats-dir", "stats_dir", "static-dir", "stage-dir", "start-dir", "key-file", "state-dict",
        "x", "",
    )  # fmt: skip
    node = Node(tmp_path, dict.fromkeys(keys, "y"))
    assert node.begin()["state-round"] == 0
    node.end(finish=False)


def test_the_right_keys_are_no_misspellings_of_each_other() -> None:
    check_keys(("partition-id", *OPTIONAL))


def test_a_relative_state_dir_is_none_that_a_budget_can_rely_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started in another folder, the node would begin another ledger, at epsilon 0."""
    monkeypatch.chdir(tmp_path)
    relative: dict[str, Any] = {"state-dir": "states"}
    with pytest.raises(LinkError, match=r"its state-dir is a relative path.* an absolute path"):
        Node(tmp_path, {**relative, "max-epsilon": 8.0}).begin()
    assert not (tmp_path / "states").exists()
    monkeypatch.setenv("SPLITMIX_HOME", "home")
    node = Node(tmp_path, {"max-epsilon": 8.0})
    del node.config["state-dir"]
    with pytest.raises(LinkError, match="its SPLITMIX_HOME is a relative path"):
        node.begin()
    without_limit = Node(tmp_path, relative)
    without_limit.begin()
    without_limit.end(finish=False)
    assert (tmp_path / "states").exists()


def test_the_audit_log_says_where_an_upload_went(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.begin(address="mixer.example:9444")
    node.step([noisy()])
    node.end(finish=False)
    assert [line["to"] for line in node.audit()] == ["mixer.example:9444"]
