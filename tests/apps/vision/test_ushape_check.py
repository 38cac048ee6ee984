"""`splitmix check` of images in the U shape says what a run then does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.apps.checking.parts import Checks
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.project import open_project
from flwr_splitmix.apps.vision import ushape
from flwr_splitmix.apps.vision.check import check
from flwr_splitmix.apps.vision.client import client_fn
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.words import epsilon_text
from tests.apps.ushape_fit import fit, read, values_of
from tests.apps.ushape_work import UNHURRIED, macs_of_step
from tests.apps.vision_app import APP, context


def checked(setting: dict[str, float] | None = None, **values: Any) -> Report:
    report = Report("vision", 2, nodes_known=True)
    check(Checks(open_project(APP), values_of(**values), report, setting))
    return report


def test_a_check_tells_of_the_parts_and_advises_on_the_cuts() -> None:
    speeds = {"uplink": 1e6, "downlink": 1e6, "rtt": 0.01, "client_flops": 1e9}
    report = checked({**speeds, "server_flops": 1e9}, depth=4)
    assert report.problems == []
    parts = ushape.parts_of(read(depth=4))
    counts = [sum(p.numel() for p in part.parameters()) for part in parts]
    assert report.facts["model"] == (
        f"vit_tiny_patch16_224, {counts[0] + counts[2]:,} of {sum(counts):,} parameters at the "
        f"clients: {counts[0]:,} in the head, {counts[2]:,} in the tail"
    )
    assert report.advice is not None
    cuts = {cut.cut_at: cut for cut in report.advice.cuts}
    assert [*cuts] == [f"head-layers={h} tail-layers={t}" for h in (1, 2, 3) for t in range(4 - h)]
    (default,) = (cut for cut in cuts.values() if cut.default)
    assert default.cut_at == "head-layers=1 tail-layers=1"
    assert default.client_parameters == counts[0] + counts[2]
    # Hidden states of 17 tokens and their gradients' counterpart, 4 images of float32.
    assert default.downlink_bytes == 2 * 4 * 17 * 192 * 4
    assert default.uplink_bytes == default.downlink_bytes + 4 * 17  # and their mask


@pytest.mark.parametrize("learns", ["all", "tail"])
def test_a_checks_bytes_are_a_runs(learns: str, tmp_path: Path) -> None:
    report = checked({}, strategy="USplitSL", learns=learns)
    assert report.advice is not None
    (default,) = (cut for cut in report.advice.cuts if cut.default)
    (row,) = fit(tmp_path, strategy="USplitSL", learns=learns).rows
    assert row["uplink_bytes"] == 2 * default.uplink_bytes
    assert row["downlink_bytes"] == 2 * default.downlink_bytes


@pytest.mark.parametrize("learns", ["all", "tail"])
def test_a_checks_work_is_a_steps(learns: str) -> None:
    """With `learns='tail'`, head and trunk have no backward pass."""
    values = values_of(strategy="USplitSL", learns=learns)
    report = checked({**UNHURRIED, "server_flops": 1.0}, strategy="USplitSL", learns=learns)
    assert report.advice is not None
    (default,) = (cut for cut in report.advice.cuts if cut.default)
    client = client_fn(context(0, 2, values))
    assert isinstance(client, UShapeClient)
    trunk = ushape.make_strategy(VisionConfig.read(values), None).trunk
    at_client, at_server = macs_of_step(client, trunk)
    # The advice is on fused attention, whose backward pass computes the weights anew.
    assert default.client_macs == pytest.approx(at_client, rel=0.01)
    assert default.step_s / 2 == pytest.approx(2 * at_server, rel=0.01)  # of two clients


@pytest.mark.parametrize("learns", ["all", "tail"])
@pytest.mark.parametrize("name", ["DPForwardSL", "DPSGDSL"])
def test_a_check_plans_the_epsilon_that_a_run_spends(
    name: str, learns: str, tmp_path: Path
) -> None:
    values: dict[str, Any] = {"strategy": name, "steps_per_round": 4, "num_server_rounds": 2}
    values["learns"] = learns
    report = checked(**values)
    (planned,) = (remark for remark in report.remarks if remark.startswith("planned privacy"))
    fitted = fit(tmp_path, **values)
    assert f"epsilon {epsilon_text(fitted.rows[-1]['train_epsilon'])} at delta 1e-05" in planned
    assert "4 releases of a training image" in planned
    hiding: Any = fitted.clients[0].hiding
    outside = hiding.statement().outside
    assert bool(outside) == (name == "DPSGDSL" or learns == "all")
    assert all(channel in planned for channel in outside)
    assert ("Not covered" in planned) == bool(outside)
    assert ("gradients returned" in planned) == (learns == "all")
    assert "lengths of texts" not in planned  # images have none


def test_a_check_refuses_what_a_run_refuses() -> None:
    assert checked(model="resnet18").problems[0].startswith("run-config: model is 'resnet18'")
    assert checked(min_nodes=3).problems[0].startswith("run-config: min-nodes is 3")
