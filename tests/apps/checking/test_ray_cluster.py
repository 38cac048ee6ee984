"""A file of Ray that names a cluster that is gone is found before a simulation waits for it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from flwr_splitmix.apps.checking.app import check_app
from flwr_splitmix.apps.checking.ray_cluster import lost_cluster
from tests.apps.app_config import APPS


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray" / "ray_current_cluster"


@pytest.fixture
def free() -> str:
    """Return an address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_cluster_that_is_gone_is_named_with_its_file_and_the_remedy(
    file: Path, free: str
) -> None:
    """A simulation would wait for it, without a word and without end."""
    file.write_text(f"{free}\n")
    remark = lost_cluster()
    assert remark.startswith(f"{file} names a Ray cluster at {free}, where nothing answers")
    assert "remove the file, as `ray stop` does" in remark
    remarks = check_app(APPS / "vision", here=Path.cwd()).remarks
    assert remark in remarks


@pytest.mark.parametrize("address", ["127.0.0.1:99999999", "\x00:1", "nobody.invalid:1"])
def test_an_address_that_nobody_can_have_is_named(address: str, file: Path) -> None:
    file.write_text(address)
    assert "names a Ray cluster at" in lost_cluster()


def test_a_cluster_that_is_there_is_not(file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        file.write_text(f"127.0.0.1:{server.getsockname()[1]}")
        assert lost_cluster() == ""


@pytest.mark.parametrize("text", [None, "", "nonsense", "::"])
def test_a_file_that_names_no_address_is_left_to_ray(text: str | None, file: Path) -> None:
    if text is not None:
        file.write_text(text)
    assert lost_cluster() == ""


@pytest.mark.parametrize(("address", "read"), [("local", False), ("auto", True), ("", True)])
def test_with_an_address_of_ones_own_ray_reads_no_file(
    address: str, read: bool, file: Path, free: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(free)
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert bool(lost_cluster()) == read


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_of_ray_address_that_is_gone_is_named(
    scheme: str, free: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", scheme + free)
    remark = lost_cluster()
    assert remark.startswith(f"RAY_ADDRESS names a Ray cluster at {scheme}{free}, where nothing")
    assert "unset it" in remark
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"{scheme}127.0.0.1:{server.getsockname()[1]}")
        assert lost_cluster() == ""
