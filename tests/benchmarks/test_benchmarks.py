"""The benchmarks run through and write what they promise; no figure is judged here."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import dishonest_client, own_labels
from flwr_splitmix.strategies import STRATEGIES
from flwr_splitmix.threads import POLICY
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def figures(benchmark: str, out: Path, *options: str, **environment: str) -> dict[str, Any]:
    """Run one benchmark as a user does and return what it wrote."""
    process = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", "--quick", "--out", str(out), *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    written: dict[str, Any] = json.loads(out.read_text())
    return written


def test_step_time_reports_every_figure_of_the_issue(tmp_path: Path) -> None:
    written = figures("step_time", tmp_path / "step_time.json")
    for name in ("unsplit_ms", "local_ms", "ray_ms", "messages_ms", "ray_small_ms"):
        assert written[name] > 0
        assert written["spread"][name]["min"] <= written[name] <= written["spread"][name]["max"]
    # What a step costs beyond its clients' own computing is a difference of two measurements.
    assert written["ray_overhead_ms"] < written["nearly_empty_step_ms"]
    assert written["messages_to_ray_small_ratio"] > 0
    pairs = zip(("ray_ratio", "local_ratio"), ("ray_ms", "local_ms"), strict=True)
    for ratio, name in pairs:
        assert written["spread"][ratio]["n"] == written["spread"][name]["n"]
    assert written["targets"].keys() == {
        "ray_ratio", "local_ratio", "ray_overhead_ms", "ray_small_ms",
    }  # fmt: skip
    assert written["machine"]["versions"].keys() >= {"flwr", "ray", "torch", "python"}


def test_waiting_threads_are_timed_alone_and_in_company(tmp_path: Path) -> None:
    written = figures("waiting_threads", tmp_path / "waiting_threads.json")
    settings = written["environments"]
    assert settings["passive"] == POLICY
    assert settings["spinning"].keys() == {"GOMP_SPINCOUNT"}
    assert written["ms"].keys() == settings.keys()
    for row in written["ms"].values():
        assert row.keys() == {"idle", "beside 2 busy loops"}
        assert all(0 < timed["min"] <= timed["median"] for timed in row.values())
    passive, spinning = (written["ms"][name]["idle"]["median"] for name in ("passive", "spinning"))
    assert written["idle_ratio"] == pytest.approx(passive / spinning)
    assert written["targets"].keys() == {"idle_ratio", "busy_ratio"}


def test_products_are_timed_with_both_libraries(tmp_path: Path) -> None:
    written = figures("products", tmp_path / "products.json", OMP_NUM_THREADS="1")
    assert isinstance(written["onednn"], bool)
    assert written["steps"]
    for row in written["steps"].values():
        assert row.keys() == {"torch_ms", "ours_ms", "ratio"}
        assert row["torch_ms"]["min"] > 0
        assert row["ours_ms"]["min"] > 0


def test_scale_weighs_all_processes_after_every_client_has_trained(tmp_path: Path) -> None:
    written = figures("scale", tmp_path / "scale.json")
    assert written["targets"].keys() == {"step_spread", "memory_ratio"}
    for run in written["runs"]:
        assert run["clients"] >= 10
        for name in ("step_ms", "outside_steps_s", "pss_mib"):
            assert run[name]["median"] > 0
        # The ServerApp's process and the hosts are among what was weighed.
        assert {"flwr-simulation", "ray::RayHost"} <= run["pss_mib_by_process"].keys()
        assert sum(run["pss_mib_by_process"].values()) == pytest.approx(
            run["pss_mib"]["max"], rel=1e-3
        )


def test_accounting_times_every_way_to_an_epsilon(tmp_path: Path) -> None:
    written = figures("accounting", tmp_path / "accounting.json", OMP_NUM_THREADS="1")
    ways = {"passes_s", "records_s", "one_client_step_by_step_s"}
    assert written["spread"].keys() == written["epsilon_of_first_client"].keys() == ways
    assert all(written[way] > 0 for way in ways)
    assert written["epsilon_of_first_client"]["passes_s"] == pytest.approx(
        written["epsilon_of_first_client"]["one_client_step_by_step_s"]
    )


def test_recording_is_compared_with_steps_without_it(tmp_path: Path) -> None:
    """The folder of its file need not be there yet."""
    written = figures("recording", tmp_path / "new" / "recording.json", OMP_NUM_THREADS="1")
    (case,) = written["cases"]
    assert case["step_ms"]["min"] > 0
    assert case["recorded_step_ms"]["min"] > 0
    assert case["megabytes_a_step"] > 0


def test_own_labels_are_counted_for_every_method(tmp_path: Path) -> None:
    written = figures("own_labels", tmp_path / "own_labels.json", OMP_NUM_THREADS="1")
    assert written["answers"].keys() == set(own_labels.METHODS)
    for row in written["answers"].values():
        assert row.keys() == own_labels.TITLES.keys()
        assert all(0 <= share <= 1 for share in row.values())
        parts = sorted((row["right_on_own"], row["right_on_others"]))
        assert parts[0] <= row["right"] <= parts[1]


def test_naive_mix_is_read_from_messages_and_from_batches(tmp_path: Path) -> None:
    written = figures("naive_mix", tmp_path / "naive_mix.json", OMP_NUM_THREADS="1")
    (row,) = written["errors"]
    assert (row["batch"], row["lam"]) == (16, 0.5)
    assert all(row[name] > 0 for name in ("linear", "linear-decoder", "solve-batch", "mean image"))


def test_labels_are_read_from_the_gradients_of_every_round(tmp_path: Path) -> None:
    written = figures("image_labels", tmp_path / "image_labels.json", OMP_NUM_THREADS="1")
    (rows,) = written["labels_read"]["USplitFL"].values()
    assert rows["1"]["replay"] == 1
    assert rows["1"]["messages"] > 0.5
    assert rows.keys() == {"1"}
    assert all(0.1 < rows["1"][f"{count} known"] < 1 for count in (1, 5))


def test_a_client_at_fault_is_compared_with_an_honest_one(tmp_path: Path) -> None:
    written = figures("dishonest_client", tmp_path / "dishonest.json", OMP_NUM_THREADS="1")
    (row,) = written["accuracy"].values()
    assert row.keys() == dishonest_client.FAULTS.keys()
    assert all(0.1 < accuracy <= 1 for accuracy in row.values())


def test_methods_compares_every_strategy_with_psl(tmp_path: Path) -> None:
    # The tensors are tiny here: threads would wait for each other, on a busy machine for minutes.
    written = figures("methods", tmp_path / "methods.json", OMP_NUM_THREADS="1")
    assert written["strategies"].keys() == STRATEGIES.keys()
    for row in written["strategies"].values():
        assert 0 < row["ms"]["min"] <= row["ms"]["median"]
        assert row["ratio"]["median"] > 0
    ratios = {name: row["uplink_ratio"] for name, row in written["strategies"].items()}
    for name in ("PSL", "SFL", "MixupSL", "ShuffledPSL", "PatchShuffleSL"):
        assert ratios[name] == 1
    # Groups of two send one client's smashed data, and everybody's labels.
    for name in ("CutMixSL", "CutMixSFL", "VanillaCutMixSL", "ShuffledCutMixSL"):
        assert 0.5 < ratios[name] < 0.51
    assert ratios["SpectralShuffleSL"] == pytest.approx(2, rel=0.02)
    alone = {name for name, kind in STRATEGIES.items() if not kind.averages}
    assert written["mixers"].keys() > alone
    target = written["targets"]["mixer_fraction"]
    for name, row in written["mixers"].items():
        parts = sum(row[f"{part}_ms"] for part in ("plan", "share", "merge", "split"))
        assert row["fraction"] == pytest.approx(parts / written["psl_ms"]["median"])
        assert target["mixers"][name] == (row["fraction"] <= target["at_most"])
    assert target["met"] == all(target["mixers"].values())


def test_deploy_compares_steps_with_messages_and_payloads_with_a_bare_echo(tmp_path: Path) -> None:
    written = figures("deploy", tmp_path / "deploy.json")
    for name in ("stream_ms", "clients_ms", "step_ms", "message_ms", "attach_s", "finish_s"):
        assert written[name] > 0
    # A step is its exchange, the clients' computing in it, and the server's.
    assert written["step_ms"] > written["stream_ms"]
    assert written["messages_to_stream"] == pytest.approx(
        written["message_ms"] / written["stream_ms"]
    )
    for nodes in ("", "one_node_"):
        row = written["spread"][f"{nodes}stream_to_echo"]
        assert row["n"] == written["settings"]["steps_a_round"]
        # A median of pairs' ratios lies between what the extremes of both sides allow.
        stream, echo = (written["spread"][f"{nodes}{name}_mb_s"] for name in ("stream", "echo"))
        assert stream["min"] / echo["max"] <= row["median"] <= stream["max"] / echo["min"]
    bounds = {name: (t.get("at_most"), t.get("at_least")) for name, t in written["targets"].items()}
    assert bounds == {
        "stream_ms": (15.0, None),
        "stream_to_echo": (None, 0.7),
        "messages_to_stream": (None, 200.0),
    }
    assert written["settings"]["command"].startswith("-m benchmarks.deploy")
    assert written["settings"]["versions"].keys() == {"grpcio", "safetensors"}


def test_edge_reports_how_far_a_step_is_from_its_lines_limit(tmp_path: Path) -> None:
    written = figures("edge", tmp_path / "edge.json", "--profiles", "lte")
    (profile,) = written["profiles"].values()
    parts = profile["parts_s"]
    trip = parts.pop("round_trip")
    assert profile["limit_s"] == pytest.approx(max(parts.values()) + trip)
    assert profile["ratio"] == pytest.approx(profile["step_s"] / profile["limit_s"])
    # 32 images of 64 tokens of width 192 and their labels, at the profile's rate.
    assert parts["up"] == pytest.approx(32 * (64 * 192 * 4 + 8) / 5e6 * 8, rel=0.01)
    assert 1 < written["wire_over_tensors"] < 1.1
    assert written["settings"]["shaped_by"] in ("tc", "relay")


def test_many_nodes_weighs_and_times_the_server(tmp_path: Path) -> None:
    written = figures("many_nodes", tmp_path / "many_nodes.json", OMP_NUM_THREADS="1")
    counts = [str(count) for count in written["settings"]["nodes"]]
    for count in counts:
        row = written[count]
        assert row["server_ms"] > 0
        assert row["attach_s"] > 0
        # A node's memory is the growth of a process that has torch in it.
        assert row["rss_mb"] > int(count) * row["exchanged_mb_a_node"]
    few, many = (written[count]["server_ms"] for count in counts)
    assert written["server_ms_ratio"] == pytest.approx(many / few)
    assert written["targets"].keys() == {"server_ms_ratio", "exchanged_mb_a_node", "attach_s"}
    assert written["settings"]["bytes_each_way"] == 51_200


def test_wire_formats_compares_accuracy_and_bytes_with_float32(tmp_path: Path) -> None:
    written = figures("wire_formats", tmp_path / "wire_formats.json", OMP_NUM_THREADS="1")
    rows = written["formats"]
    whole = rows["float32"]["top1"]
    assert rows["float32"]["points"] == 0
    for row in rows.values():
        assert row["points"] == pytest.approx(row["top1"] - whole)
        for way in ("up", "down"):
            assert 0 < row[way]["entropy"] <= 1
            assert row[way].keys() >= ({"zstd"} if written["settings"]["zstd"] else set())
    # Patches of 192 numbers with a scale of 4 bytes; labels and safetensors' header come on top.
    for name, share in (("int8", 1 / 4), ("int4/int8", 1 / 8)):
        scales = 4 / (4 * 192)
        assert rows[name]["up"]["wire_over_tensors"] == pytest.approx(share + scales, abs=0.002)
    assert written["targets"].keys() == rows.keys() - {"float32"}


def test_a_nodes_guards_are_timed_with_and_without_the_wait_for_the_disk(tmp_path: Path) -> None:
    written = figures("node_guards", tmp_path / "node_guards.json")
    for name in ("charge", "audit_line"):
        assert written[f"{name}_ms"] > 0
        assert written[f"{name}_without_fsync_ms"] > 0
    assert written["open_long_ledger_ms"] > 0
    assert written["open_summed_ledger_ms"] > 0


def test_a_killed_benchmark_leaves_no_busy_loops() -> None:
    program = (
        "import os, time\nfrom benchmarks.measure import busy_loops\n"
        "with busy_loops(1):\n    print(os.getpid(), flush=True)\n    time.sleep(600)\n"
    )
    benchmark = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert benchmark.stdout is not None
    assert int(benchmark.stdout.readline()) == benchmark.pid
    (loop,) = psutil.Process(benchmark.pid).children()
    benchmark.kill()
    benchmark.communicate()
    wait_for("the end of the loop", lambda: not loop.is_running())


def test_a_benchmark_that_is_told_to_end_leaves_no_process() -> None:
    command = [sys.executable, "-m", "benchmarks.step_time", "--quick", "--out", os.devnull]
    benchmark = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    parent = psutil.Process(benchmark.pid)
    started: list[psutil.Process] = []

    def superlink_runs() -> bool:
        started[:] = parent.children(recursive=True)
        return any("flower-superlink" in " ".join(_command(process)) for process in started)

    wait_for("a SuperLink", superlink_runs, 240)
    benchmark.terminate()
    assert benchmark.wait(timeout=240) == 143
    wait_for("the end of all of them", lambda: not any(map(_lives, started)))


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        command: list[str] = process.cmdline()
        return command
    return []


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
