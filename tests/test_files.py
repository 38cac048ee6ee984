"""Files are whole or absent, and on the disk when a flushed write returns."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flwr_splitmix.files.home import expanded, home_folder
from flwr_splitmix.files.writing import (
    append_line,
    flush_folder,
    write_atomic,
    write_json,
    write_new,
)


def test_a_refused_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys, pathlib\n"
        "from flwr_splitmix.files.writing import write_atomic\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_atomic(pathlib.Path(sys.argv[1]), bytes(1001))\n"
        "except OSError: print('refused')\n"
    )
    file = tmp_path / "file"
    write_atomic(file, b"old")
    process = subprocess.run(
        [sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True
    )
    assert process.stdout == "refused\n"
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("flush", [True, False])
def test_a_flushed_write_also_flushes_the_name(
    tmp_path: Path, flushed: list[Path], flush: bool
) -> None:
    write_atomic(tmp_path / "file", b"new", flush=flush)
    assert (tmp_path in flushed) == flush
    assert len(flushed) == 2 * flush


@pytest.mark.parametrize(("number", "refused"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_only_a_file_system_that_cannot_flush_folders_is_excused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, refused: bool
) -> None:
    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if not refused:
        flush_folder(tmp_path)
        return
    with pytest.raises(OSError, match=os.strerror(number)):
        flush_folder(tmp_path)


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_is_its_owners_and_takes_no_others_place(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file system has no hard links."""

    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "owner"
    for data in (b"first", b"second"):
        write_new(path, data)
    assert path.read_bytes() == b"first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_json_lacks_is_written_as_text(tmp_path: Path) -> None:
    values = {"loss": math.nan, "seen": [math.inf, (-math.inf, 1.5)], "n": 3, "at": None}
    write_json(tmp_path / "file.json", values)

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads((tmp_path / "file.json").read_text(), parse_constant=refuse) == {
        "loss": "nan", "seen": ["inf", ["-inf", 1.5]], "n": 3, "at": None
    }  # fmt: skip


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_are_as_readable_as_the_umask_says_unless_they_are_private(
    tmp_path: Path, mask: int, mode: int
) -> None:
    """Whatever writes them."""
    with umask(mask):
        write_atomic(tmp_path / "result", b"new")
        write_json(tmp_path / "json", {})
        append_line(tmp_path / "lines", "one")
        write_atomic(tmp_path / "private", b"new", private=True)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {"result": mode, "json": mode, "lines": mode, "private": 0o600}


def test_the_home_is_the_one_given_or_the_environments_or_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPLITMIX_HOME", "~/mine")
    assert home_folder("given") == Path("given")
    assert home_folder() == home_folder("") == Path("~/mine")
    monkeypatch.setenv("SPLITMIX_HOME", "")
    assert home_folder() == Path("~/.splitmix")
    monkeypatch.delenv("SPLITMIX_HOME")
    assert home_folder() == Path("~/.splitmix")


def test_the_path_of_an_unknown_user_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/a", "run-dir", ValueError) == tmp_path / "a"
    message = "run-dir is '~nouser/a', and this machine knows no folder '~nouser'; give an absolute"
    with pytest.raises(LookupError, match=message):
        expanded("~nouser/a", "run-dir", LookupError)
