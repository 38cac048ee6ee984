"""`splitmix compare` and `splitmix report` on the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from matplotlib.image import imread
from typer.testing import CliRunner

from flwr_splitmix.cli import app
from flwr_splitmix.runs import Run

Splitmix = Callable[..., Result]


def call(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--run-dir", str(home)])


def test_every_ending_is_written_and_the_table_printed(toy_home: Path, tmp_path: Path) -> None:
    names = ["t.csv", "t.md", "t.tex", "c.png", "c.svg"]
    files = [tmp_path / name for name in names]
    outputs = [part for file in files for part in ("-o", str(file))]
    result = call(toy_home, "compare", "mixed", "plain", *outputs)
    assert result.exit_code == 0, result.output
    assert "CutMixSL" in result.stdout
    assert "±" in result.stdout
    assert [name for name in names if f"wrote {tmp_path / name}" in result.stderr] == names
    assert files[2].read_text().startswith(r"\begin{tabular}")
    assert np.std(imread(files[3])[:, :, :3]) > 0


@pytest.mark.parametrize(("kind", "begin"), [("csv", "name,"), ("markdown", "| strategy |")])
def test_a_format_is_all_that_is_printed(toy_home: Path, kind: str, begin: str) -> None:
    result = call(toy_home, "compare", "mixed", "plain", "--format", kind)
    assert result.stdout.startswith(begin)
    assert len(result.stdout.splitlines()) == {"csv": 3, "markdown": 4}[kind]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "plain", "-o", "x.docx"], "its name ends in none of .csv, .md, .tex"),
        (["compare", "plain", "-o", "missing/x.csv"], "cannot write missing/x.csv: No such"),
        (["compare", "plain", "--over", "time"], "--over is the x axis of curves, and no file"),
        (["compare", "plain", "--over", "all", "-o", "x.csv"], "--over is the x axis of curves"),
        (["compare", "nosuch"], "there is no run 'nosuch'"),
        (["report", "plain", "-o", "x.pdf"], "a report's name ends in .html"),
        (["report", "plain", "-o", "missing/x.html"], "cannot write missing/x.html: No such"),
        (["report", "plain", "--mixtures", "-o", "x.html"], "keep-mixtures=4"),
    ],
)
def test_what_is_wrong_is_one_clear_error(
    toy_home: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(toy_home, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_output_of_ascii_takes_a_deviation(toy_home: Path) -> None:
    """ASCII lacks the sign of a deviation."""
    command = [sys.executable, "-c", "from flwr_splitmix.cli import app; app()"]
    process = subprocess.run(
        [*command, "compare", "mixed", "plain", "--run-dir", str(toy_home)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    output = process.stdout.decode("ascii")
    assert (process.returncode, "Traceback" in process.stderr.decode()) == (0, False)
    assert " ? " in output


@pytest.mark.parametrize("name", ["x.csv", "x.png", "x.html"])
def test_a_full_disk_leaves_the_old_file(toy_home: Path, name: str, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    script = (
        "import resource, signal, sys\n"
        "import matplotlib.pyplot\n"  # which writes a cache of fonts
        "from flwr_splitmix.cli import app\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "app()\n"
    )
    file, link = tmp_path / name, tmp_path / f"link-{name}"
    file.write_text("old")
    link.symlink_to(file)
    command = "report" if name.endswith("html") else "compare"
    arguments = [command, "mixed", "plain", "-o", str(link), "--run-dir", str(toy_home)]
    process = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stderr) == (1, f"cannot write {link}: File too large\n")
    assert file.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [link, file]
    assert call(toy_home, *arguments[:-2]).exit_code == 0
    assert link.is_symlink()
    assert file.stat().st_size > 10


def test_kinds_of_accuracy_are_refused_with_the_way_out(
    splitmix: Splitmix, finished: Run, home: Path
) -> None:
    other = Run.create({"strategy": "psl"}, name="x", home=home)
    other.append_round({"round": 1, "accuracy": 0.5, "accuracy_kind": "benchmark"})
    result = splitmix("compare", finished.id, other.id)
    assert result.exit_code == 1
    assert "--mix-kinds" in result.stderr
    mixed = splitmix("compare", finished.id, other.id, "--mix-kinds")
    assert mixed.exit_code == 0
    assert "several kinds" in mixed.stderr


def test_a_report_is_written_with_what_the_method_hides(toy_home: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    result = call(toy_home, "report", "noisy", "mixed", "-o", str(file), "--mixtures")
    assert result.exit_code == 0, result.output
    page = file.read_text(encoding="utf-8")
    assert "hides from the server: what an epsilon says: docs/privacy.md of flwr-splitmix." in page
    assert "The first mixtures of round 3" in page


def test_neither_loads_torch(toy_home: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from flwr_splitmix.cli import app\n"
        f"home, file = {str(toy_home)!r}, {str(tmp_path / 'r.html')!r}\n"
        "for command in (['compare', 'mixed'], ['report', 'mixed', '-o', file]):\n"
        "    done = CliRunner().invoke(app, [*command, '--run-dir', home])\n"
        "    assert done.exit_code == 0, done.output\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
