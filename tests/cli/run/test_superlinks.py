"""Whose SuperLink a run would go to: real processes of real environments, on free ports."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.cli.run import superlinks
from flwr_splitmix.cli.run.superlinks import (
    Connection,
    SuperLinkError,
    check_environment,
    find_listener,
    programs_here,
    read_connection,
)
from flwr_splitmix.sandbox.superlink import free_port
from tests.apps.app_config import APPS
from tests.waiting import wait_for

LISTENS = """#!{python}
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    sys.stdin.read()
"""


def superlink(environment: Path, port: int, folder: Path | None = None) -> subprocess.Popen[bytes]:
    """Start something that listens as the SuperLink of an environment does."""
    program = environment / "bin" / "flower-superlink"
    program.write_text(LISTENS.format(python=environment / "bin" / "python"))
    program.chmod(0o755)
    process = subprocess.Popen([str(program), str(port)], stdin=subprocess.PIPE, cwd=folder)
    wait_for("what listens", lambda: find_listener(port) is not None)
    return process


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """Make a second environment with a SuperLink: its folder, and where it listens."""
    environment, port = tmp_path_factory.mktemp("other") / "venv", free_port()
    venv.create(environment, symlinks=True, with_pip=False)
    process = superlink(environment, port)
    yield environment, port
    process.terminate()
    process.wait()


def test_a_superlink_of_another_environment_is_found_out(other: tuple[Path, int]) -> None:
    environment, port = other
    with pytest.raises(SuperLinkError) as caught:
        check_environment(Connection(None, True, (port,)))
    sentence = str(caught.value)
    assert f"port {port}" in sentence
    assert str(environment.resolve()) in sentence
    assert str(programs_here().parent) in sentence
    assert "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=" in sentence


def test_splitmix_run_does_not_run_in_it(
    other: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second environment here is this one, with a FLWR_HOME of its own."""
    environment, port = other
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(port))
    result = CliRunner().invoke(app, ["run", str(APPS / "vision"), "--nodes", "2"])
    assert result.exit_code == 1
    assert "belongs to another environment" in result.stderr
    assert str(environment.resolve()) in result.stderr
    assert not (tmp_path / "flwr").exists(), "flwr was started"


def test_one_of_this_environment_is_fine(
    other: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, port = other
    monkeypatch.setattr(superlinks, "programs_here", lambda: (environment / "bin").resolve())
    assert check_environment(Connection(None, True, (port,))) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the folder cannot be looked up")
@pytest.mark.parametrize(
    ("local", "remedy"),
    [(True, ", and flwr starts another one"), (False, " and start it")],
)
def test_one_whose_folder_was_removed_is_found_out(
    local: bool,
    remedy: str,
    other: tuple[Path, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its runs would fail after a minute: "No heartbeat received from the task"."""
    (environment, _), port, folder = other, free_port(), tmp_path / "gone"
    monkeypatch.setattr(superlinks, "programs_here", lambda: (environment / "bin").resolve())
    folder.mkdir()
    process = superlink(environment, port, folder)
    try:
        assert check_environment(Connection(None, local, (port,))) == ""
        folder.rmdir()
        with pytest.raises(SuperLinkError) as caught:
            check_environment(Connection(None, local, (port,)))
    finally:
        process.terminate()
        process.wait()
    message = f"(process {process.pid}) was started in {folder}, which is no longer there"
    assert message in str(caught.value)
    assert f"(kill {process.pid}){remedy} where you are now" in str(caught.value)


def test_a_free_port_is_fine() -> None:
    assert check_environment(Connection(None, True, (free_port(),))) == ""


def test_a_listener_that_cannot_be_looked_at_is_said(
    other: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, port = other
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert "it could not be determined" in check_environment(Connection(None, True, (port,)))


def test_a_command_in_a_folder_that_was_removed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(free_port()))
    monkeypatch.setenv("FLWR_LOCAL_CONTROL_API_PORT", str(free_port()))
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = CliRunner().invoke(app, ["run", str(APPS / "vision"), "--nodes", "2"])
    assert result.exit_code == 1
    assert result.stderr == "the folder that you are in has been removed; change to another one\n"


@pytest.mark.parametrize(
    ("described", "name", "expected"),
    [
        (None, None, Connection(None, True, (39091, 39093))),
        ('[superlink]\ndefault = "a"\n[superlink.a]\naddress = ":local:"', None,
         Connection(None, True, (39091, 39093))),
        ('[superlink.b]\naddress = "127.0.0.1:9093"\ninsecure = true', "b",
         Connection("b", False, (9093,))),
        ('[superlink.c]\naddress = "flower.example:9093"', "c", Connection("c", False, ())),
    ],
)  # fmt: skip
def test_a_connection_is_read_from_flwrs_configuration(
    described: str | None,
    name: str | None,
    expected: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    for variable in superlinks.PORTS:
        monkeypatch.delenv(variable, raising=False)
    if described is not None:
        (tmp_path / "config.toml").write_text(described, encoding="utf-8")
    assert read_connection(name) == expected


@pytest.mark.parametrize(
    ("described", "port", "message"),
    [
        ('superlink = "x"', "", "has superlink = 'x'; it must be a table, [superlink]"),
        ('[superlink]\ndefault = "a"\na = "127.0.0.1:9093"', "",
         "has superlink.a = '127.0.0.1:9093'; it must be a table, [superlink.a]"),
        ("[superlink", "", "is not a TOML file: "),
        ("", "abc", "FLWR_LOCAL_CONTROL_API_PORT is 'abc'; it must be a port, 1 to 65535"),
        ("", "65536", "FLWR_LOCAL_CONTROL_API_PORT is '65536'; it must be a port, 1 to 65535"),
    ],
)  # fmt: skip
def test_wrong_settings_of_flwr_are_a_sentence(
    described: str, port: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_LOCAL_CONTROL_API_PORT", port)
    (tmp_path / "config.toml").write_text(described, encoding="utf-8")
    result = CliRunner().invoke(app, ["run", str(APPS / "vision"), "--nodes", "2"])
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
