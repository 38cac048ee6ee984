"""Commands whose standard output takes no more: on a full disk one sentence, behind `head` none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flwr_splitmix.runs import Run

FULL = Path("/dev/full")
COMMAND = [sys.executable, "-c", "from flwr_splitmix.cli import app; app(prog_name='splitmix')"]


@pytest.mark.skipif(not FULL.exists(), reason="there is no such device here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], ["runs"], ["show"], ["show", "--format", "json"]],
    ids=" ".join,
)
def test_a_full_disk_is_one_sentence(
    arguments: list[str], unbuffered: str, finished: Run, home: Path
) -> None:
    """JSON of more than a buffer leaves nothing in it to try again."""
    environment = {**os.environ, "SPLITMIX_HOME": str(home), "PYTHONUNBUFFERED": unbuffered}
    with FULL.open("w") as full:
        process = subprocess.run(
            [*COMMAND, *arguments],
            stdout=full, stderr=subprocess.PIPE, env=environment, text=True, check=False,
        )  # fmt: skip
    assert (process.returncode, process.stderr) == (
        1,
        "standard output cannot be written: No space left on device\n",
    )


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--format", "json"]], ids=" ".join)
def test_a_closed_pipe_ends_a_command_without_a_word(
    arguments: list[str], finished: Run, home: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [*COMMAND, *arguments],
        stdout=writing, stderr=subprocess.PIPE, env={**os.environ, "SPLITMIX_HOME": str(home)},
        text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (process.returncode, process.stderr) == (1, "")
