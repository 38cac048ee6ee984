"""`splitmix privacy compare` is a table over k, and a picture of the same curves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from matplotlib.image import imread

from flwr_splitmix.cli.privacy.plot import ComparisonSetting, draw
from tests.cli.privacy.test_commands import PAPER, value

Splitmix = Callable[..., Result]


def test_the_comparison_is_a_row_for_each_group_size(splitmix: Splitmix) -> None:
    result = splitmix("privacy", "compare", "--clients", "4")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines() if line[:1].isdigit()]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    table = np.array([[float(cell) for cell in row[1:]] for row in rows])
    sl, mix, cutmix = table[:, :3].T
    assert (mix[1:] < cutmix[1:]).all()
    assert (cutmix[1:] < sl[1:]).all()
    assert len(set(sl)) == 1  # without mixing, the group does not matter
    assert table[1, 2] == pytest.approx(6.71, abs=0.01)
    assert "no guarantee" in result.stdout


def test_the_comparison_can_count_those_left_over(splitmix: Splitmix) -> None:
    """One of four is alone with k = 3, once in four passes; a single pass may be that one."""
    compare = ("privacy", "compare", "--clients", "4", "--passes", "200")
    full, all_of_them = (splitmix(*compare, *more) for more in ((), ("--left-over",)))
    tables = []
    for result in (full, all_of_them):
        rows = [line.split() for line in result.stdout.splitlines() if line[:1].isdigit()]
        tables.append(np.array([[float(cell) for cell in row] for row in rows]))
    assert "--left-over shows" in full.stdout
    assert "--left-over" not in all_of_them.stdout
    more = tables[1] > tables[0]
    assert np.argwhere(more).tolist() == [[2, 2], [2, 3]]  # k = 3, Mix and CutMix
    assert (tables[1] >= tables[0]).all()
    assert tables[1][2, 3] < tables[1][2, 1]  # less than of all alone
    noise = ["--sigma-s", "0.5087", "--sigma-y", "0.5087"]
    run = ["--k", "3", "--clients", "4", "--passes", "200"]
    same = splitmix("privacy", "epsilon", *noise, *PAPER, *run)
    assert value(same, "epsilon") == pytest.approx(tables[1][2, 3], rel=1e-3)


def test_the_picture_has_both_panels_and_the_curves_of_the_table(
    splitmix: Splitmix, tmp_path: Path
) -> None:
    file = tmp_path / "compare.png"
    assert splitmix("privacy", "compare", "-o", str(file)).exit_code == 0
    pixels = imread(file)
    middle = pixels.shape[1] // 2
    assert np.std(pixels[:, :middle, :3]) > 0
    assert np.std(pixels[:, middle:, :3]) > 0
    setting = ComparisonSetting(
        sigma_s=0.5, sigma_y=0.5, bound=0.15, dimension=10, classes=2, clients=5, order=2.0,
        passes=1, delta=2e-4, trusted_mixer=False,
    )  # fmt: skip
    over_k, over_variance = draw(setting).axes
    for line, (name, values) in zip(over_k.lines, setting.over_k().items(), strict=True):
        assert line.get_label() == name
        np.testing.assert_allclose(np.asarray(line.get_ydata()), values)
    for line in over_variance.lines:
        drawn = np.asarray(line.get_ydata())
        assert (np.diff(drawn) < 0).all()  # more noise, less epsilon


def test_the_command_does_not_load_torch() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from flwr_splitmix.cli import app;"
        "done = CliRunner().invoke(app, ['privacy', 'compare']);"
        "sys.exit(done.exit_code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
