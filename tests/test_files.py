"""Files are whole or absent, and on the disk when a flushed write returns."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flwr_splitmix.files import flush_folder, write_atomic, write_json


def test_a_refused_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys, pathlib\n"
        "from flwr_splitmix.files import write_atomic\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_atomic(pathlib.Path(sys.argv[1]), bytes(1001))\n"
        "except OSError: print('refused')\n"
    )
    file = tmp_path / "file"
    write_atomic(file, b"old")
    done = subprocess.run(
        [sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"
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


def test_what_json_lacks_is_written_as_text(tmp_path: Path) -> None:
    values = {"loss": math.nan, "seen": [math.inf, (-math.inf, 1.5)], "n": 3, "at": None}
    write_json(tmp_path / "file.json", values)

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads((tmp_path / "file.json").read_text(), parse_constant=refuse) == {
        "loss": "nan", "seen": ["inf", ["-inf", 1.5]], "n": 3, "at": None
    }  # fmt: skip
