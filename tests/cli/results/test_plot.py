"""`splitmix plot` draws what the runs hold, or says why not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from matplotlib.image import imread

from flwr_splitmix.cli.picture import two_panels
from flwr_splitmix.cli.results.plot import _draw
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.reports.comparison import compare
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy

Splitmix = Callable[..., Result]

TOY = Toy(clients=2)


def test_the_picture_is_a_png_with_something_in_both_panels(
    splitmix: Splitmix, finished: Run, unfinished: Run, tmp_path: Path
) -> None:
    file = tmp_path / "runs.png"
    result = splitmix("plot", finished.id, "latest", "-o", str(file))
    assert result.exit_code == 0
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    pixels = imread(file)
    middle = pixels.shape[1] // 2
    assert np.std(pixels[:, :middle, :3]) > 0
    assert np.std(pixels[:, middle:, :3]) > 0


def test_lines_are_accuracy_where_evaluated_and_the_running_sum_of_the_uplink(
    finished: Run, unfinished: Run
) -> None:
    accuracy, uplink = _draw(compare([finished, unfinished])).axes
    lines = [np.asarray(line.get_xydata()) for line in accuracy.lines]
    np.testing.assert_allclose(lines[0], [[n, 50.0 + n] for n in range(2, 29, 2)])
    np.testing.assert_allclose(lines[1], [[n, 50.0 + n] for n in range(1, 4)])
    uplink_points = np.asarray(uplink.lines[1].get_xydata())
    np.testing.assert_allclose(uplink_points, [[1, 1.0], [2, 2.0], [3, 3.0]])
    labels = [str(line.get_label()) for line in accuracy.lines]
    assert labels[0].startswith("cutmixsl")
    assert labels[1].startswith("psl")


def test_the_strategy_of_a_run_that_fit_made_is_named(tmp_path: Path) -> None:
    """A configuration of one's own need not have the strategy's name."""
    run = Run.create({}, name="mine", home=tmp_path)
    PSL(TOY.upper(), device="cpu", steps_per_round=1, run=run).fit(TOY.make_clients(), 1)
    (line,) = _draw(compare([Run.open(run.id, home=tmp_path)])).axes[0].lines
    assert str(line.get_label()).startswith(f"PSL ({run.id}")


@pytest.mark.parametrize("name", ["runs.xyz", "runs", "missing/runs.png"])
def test_a_picture_that_cannot_be_written_is_one_clear_error(
    splitmix: Splitmix, finished: Run, tmp_path: Path, name: str
) -> None:
    result = splitmix("plot", finished.id, "-o", str(tmp_path / name))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert name in result.stderr
    assert not list(tmp_path.glob("runs*"))


def test_a_run_without_rounds_cannot_be_plotted(
    splitmix: Splitmix, home: Path, tmp_path: Path
) -> None:
    run = Run.create({}, name="new", home=home)
    result = splitmix("plot", run.id, "-o", str(tmp_path / "runs.png"))
    assert result.exit_code == 1
    assert run.id in result.stderr


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RunError, match=r"pictures need matplotlib: pip install '\.\[r"):
        two_panels(lambda left, right: None)


def test_kinds_of_accuracy_are_refused_as_by_compare(
    splitmix: Splitmix, finished: Run, home: Path, tmp_path: Path
) -> None:
    """On one axis they could not be told apart."""
    other = Run.create({"strategy": "psl"}, name="x", home=home)
    other.append_round({"round": 1, "accuracy": 0.5, "accuracy_kind": "benchmark"})
    file = tmp_path / "runs.png"
    arguments = ["plot", finished.id, other.id, "-o", str(file)]
    result = splitmix(*arguments)
    assert (result.exit_code, file.exists()) == (1, False)
    assert "--mix-kinds" in result.stderr
    assert splitmix(*arguments, "--mix-kinds").exit_code == 0
    assert file.exists()


def test_the_axis_names_the_kind_of_accuracy(finished: Run) -> None:
    accuracy, _ = _draw(compare([finished])).axes
    assert accuracy.get_ylabel() == "top-1 accuracy in % (global test set)"


def test_a_round_is_a_whole_number_and_a_long_legend_stays_on_the_page(home: Path) -> None:
    """One round has no ticks from 0.945 to 1.05, and no name is cut off at an edge."""
    runs = []
    for strategy in ("psl", "cutmixsl"):
        config = {"strategy": strategy, **{f"quite-a-long-key-{n}": strategy for n in range(8)}}
        runs.append(Run.create(config, name=strategy, home=home))
        runs[-1].append_round({"round": 1, "accuracy": 0.5, "accuracy_kind": "benchmark"})
    figure = _draw(compare(runs))
    figure.draw_without_rendering()
    low, high = figure.axes[0].get_xlim()
    ticks = [tick for tick in figure.axes[0].get_xticks() if low <= tick <= high]
    assert ticks == [1]
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
