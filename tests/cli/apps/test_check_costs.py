"""`splitmix check`: what cuts and methods cost, in bytes and time, and that runs cost that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.apps.language.advice import traffic_of as text_traffic
from flwr_splitmix.apps.vision.advice import traffic_of
from flwr_splitmix.mixers import SmashedShape
from tests.apps import language_app, vision_fit
from tests.apps.app_config import APPS
from tests.apps.language_app import read as read_language
from tests.cli.apps.check_command import check

NETWORK = (
    "--uplink", "20mbit", "--downlink", "100mbit", "--rtt", "40ms",
    "--client-flops", "1gflops", "--server-flops", "1tflops",
)  # fmt: skip


@pytest.fixture(scope="module")
def advised() -> dict[str, Any]:
    result = check(
        APPS / "vision", "--nodes", "4", "--format", "json", *NETWORK,
        "--run-config", "depth=2 evaluation='none'",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_the_report_has_a_row_for_every_cut(advised: dict[str, Any]) -> None:
    assert advised["ok"] is True
    assert advised["problems"] == []
    assert [cut["cut_at"] for cut in advised["cuts"]] == ["embedding", "blocks.0", "blocks.1"]
    assert [cut["default"] for cut in advised["cuts"]] == [True, False, False]
    first, second, _ = advised["cuts"]
    # 64 pixels and a bias to each of 192 numbers, and 16 positions.
    assert first["client_parameters"] == 64 * 192 + 192 + 16 * 192
    block = 4 * 192 + 4 * 192 * 192 + 4 * 192 + 2 * 4 * 192 * 192 + 4 * 192 + 192
    assert second["client_parameters"] == first["client_parameters"] + block + 2 * 192
    # The projection has no gradient to hand on: twice its multiply-adds, for each of 32 images.
    assert first["client_macs"] == 32 * 2 * 16 * 64 * 192
    grows = [cut["client_memory_bytes"] for cut in advised["cuts"]]
    assert grows == sorted(grows)


def test_a_cut_behind_a_block_sends_the_class_token_whole(advised: dict[str, Any]) -> None:
    """With k = 2, half of the patches on average; the class token is not masked."""
    smashed_bytes = [cut["uplink_bytes"] - 32 * 8 for cut in advised["cuts"]]
    patches = 32 * 8 * 192 * 4
    assert smashed_bytes[0] == pytest.approx(patches, rel=0.01)
    assert smashed_bytes[1] - smashed_bytes[0] == pytest.approx(32 * 192 * 4, rel=0.05)


def test_a_step_takes_as_long_as_network_and_speeds_say(advised: dict[str, Any]) -> None:
    assert advised["setting"] == {
        "uplink": 20e6, "downlink": 100e6, "rtt": 0.04, "client_flops": 1e9, "server_flops": 1e12,
    }  # fmt: skip
    assert advised["measured"] == []
    for cut in advised["cuts"]:
        least = 0.04 + cut["uplink_bytes"] / 2.5e6 + cut["downlink_bytes"] / 12.5e6
        least += 2 * cut["client_macs"] / 1e9
        assert least < cut["step_s"] < least + 0.02  # and what the server takes


def test_methods_are_compared_with_psl(advised: dict[str, Any]) -> None:
    shares = {name: row["uplink_share"] for row in advised["methods"] for name in row["strategies"]}
    assert shares["PSL"] == shares["SFL"] == shares["MixupSL"] == 1.0
    assert shares["CutMixSL"] == shares["CutMixSFL"] == pytest.approx(0.5, abs=0.01)
    assert shares["DPSL"] > 1.0  # soft labels
    assert {"DPCutMixSL", "InputMixupSL", "CutoutSL", "VanillaCutMixSL"} <= shares.keys()


@pytest.mark.parametrize("strategy", ["PSL", "CutMixSL", "DPSL"])
def test_predicted_bytes_are_those_of_a_run(strategy: str, tmp_path: Path) -> None:
    # As even as possible: every mask keeps half of the patches, whatever is drawn.
    values: dict[str, Any] = {
        "strategy": strategy, "alpha": float("inf"), "depth": 1, "steps_per_round": 2,
        **vision_fit.needed(strategy),
    }  # fmt: skip
    fitted = vision_fit.fit(tmp_path, n=2, **values)
    config = vision_fit.read(**{**vision_fit.ONE_STEP, **values})
    geometry = fitted.segments.lower.geometry
    shape = SmashedShape(4, geometry.patches, geometry.width, geometry.prefix, geometry.grid, 10)
    traffic = traffic_of(config.trial().mixer, shape, 2, config)
    assert fitted.row["uplink_bytes"] == 2 * 2 * traffic.up
    assert fitted.row["downlink_bytes"] == 2 * 2 * traffic.down


@pytest.mark.parametrize(
    ("strategy", "dtype"),
    [("USplitSL", "float32"), ("MixGuard", "float32"), ("USplitSL", "bfloat16")],
)
def test_predicted_bytes_are_those_of_a_run_of_texts(
    strategy: str, dtype: str, tmp_path: Path
) -> None:
    values: dict[str, Any] = {
        "strategy": strategy, "dtype": dtype, "pad_to": 60, "max_length": 60, "refine_every": 1,
    }  # fmt: skip
    fitted = language_app.fit(tmp_path, **values)
    (row,) = fitted.rows
    config = read_language(**{**language_app.TINY, **values})
    up, down = text_traffic(config, 60, config.small_width)
    assert row["uplink_bytes"] == pytest.approx(2 * up, rel=0.02)
    assert row["downlink_bytes"] == pytest.approx(2 * down, rel=0.02)


def test_a_language_model_has_a_row_for_every_head_and_tail(tmp_path: Path) -> None:
    plot = tmp_path / "cuts.png"
    result = check(
        APPS / "language", "--format", "json", *NETWORK, "--output", str(plot),
        "--run-config", "strategy='USplitSL' small-layers=3",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    cuts = {cut["cut_at"]: cut for cut in report["cuts"]}
    assert len(cuts) == 6  # heads and tails of together at most two of three layers
    assert cuts["head-layers=1 tail-layers=1"]["default"]
    bytes_up = {cut["uplink_bytes"] for cut in report["cuts"]}
    assert len(bytes_up) == 1  # the width is everywhere the same
    parameters = [cuts[f"head-layers={i} tail-layers=0"]["client_parameters"] for i in range(3)]
    assert parameters[2] - parameters[1] == parameters[1] - parameters[0] > 0
    assert plot.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_tables_are_printed_with_what_was_measured() -> None:
    result = check(APPS / "vision", "--run-config", "model='lenet5'", "--rtt", "40ms")
    assert result.exit_code == 0, result.output
    assert "round trip 40 ms," in result.stdout
    assert "FLOP/s (measured here)" in result.stdout
    for cut in ("conv1", "pool1", "conv2 *"):
        assert any(line.startswith(f"{cut} ") for line in result.stdout.splitlines())
