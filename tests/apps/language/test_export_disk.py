"""A language model that cannot be written: one sentence, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.language_app import fit


@pytest.mark.parametrize(
    "room",
    [
        pytest.param(20_000, id="model.safetensors"),
        pytest.param(10**9, id="tokenizer.json"),
    ],
)
def test_a_full_disk_is_named_with_a_remedy(room: int, tmp_path: Path) -> None:
    """Weights and tokenizers are not written by Python, so their errors are others.

    A limit on the size of files stands in for the disk; for the tokenizer, which is smaller than
    the weights, it is set once they are written.
    """
    script = (
        "import resource, signal, sys\n"
        "from transformers import PreTrainedTokenizerBase\n"
        "from flwr_splitmix.cli import app\n"
        "room = int(sys.argv.pop(1))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "save = PreTrainedTokenizerBase.save_pretrained\n"
        "def limited(*arguments, **options):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))\n"
        "    return save(*arguments, **options)\n"
        "PreTrainedTokenizerBase.save_pretrained = limited\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))\n"
        "app()\n"
    )
    run, folder = (
        fit(tmp_path / "home", strategy="USplitFL").strategy.recorder.run,
        tmp_path / "model",
    )
    assert run is not None
    arguments = ["export", run.id, str(folder), "--run-dir", str(run.path.parents[1])]
    process = subprocess.run(
        [sys.executable, "-c", script, str(room), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stderr) == (
        1,
        f"{folder} cannot be written (File too large); choose a folder on a disk with room\n",
    )
    assert not folder.exists()
