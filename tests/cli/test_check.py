"""`splitmix check`: what it finds, what it advises, and that it starts nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from transformers import Phi3Config
from typer.testing import CliRunner

from flwr_splitmix.apps.check import check_app
from flwr_splitmix.apps.language.advice import traffic_of as text_traffic
from flwr_splitmix.apps.vision.advice import traffic_of
from flwr_splitmix.cli import app
from flwr_splitmix.mixers import SmashedShape
from tests.apps import language_app, vision_fit
from tests.apps.app_config import APPS
from tests.apps.language_app import read as read_language
from tests.apps.test_language_texts import gpt2
from tests.segments.language.tiny_models import GROUPED, config_of, whole_model

NETWORK = (
    "--uplink", "20mbit", "--downlink", "100mbit", "--rtt", "40ms",
    "--client-flops", "1gflops", "--server-flops", "1tflops",
)  # fmt: skip


def check(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["check", str(folder), *options])


@pytest.fixture(scope="module")
def advised() -> dict[str, Any]:
    done = check(
        APPS / "vision", "--nodes", "4", "--format", "json", *NETWORK,
        "--run-config", "depth=2 evaluation='none'",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize(
    ("app", "keys", "said"),
    [
        ("vision", "min-nodes=5", "min-nodes is 5, but the federation has 2 SuperNodes"),
        ("language", "min-nodes=5", "min-nodes is 5, but the federation has 2 SuperNodes"),
        ("vision", "image-size=30", "patch-size 8 does not divide image-size 30"),
        (
            "vision",
            "strategy='InputCutMixSL' model='lenet5'",
            "5 x 5 equal cells: the grid of patches must divide them, or the strategy's "
            "grid=(rows, columns); patch-size, cut-at and cell set the grid of patches",
        ),
        (
            "language",
            "lora-rank=4 head-layers=0",
            "lora-parts names 'head', but head-layers is 0, so that it has no layer to adapt",
        ),
        ("language", "support-texts=400", "support-texts is 400, of 400 public texts"),
        ("language", "samples-per-client=1001", "(samples-per-client); allowed are up to 1000"),
    ],
)
def test_what_would_end_a_run_is_named_by_its_key(app: str, keys: str, said: str) -> None:
    done = check(APPS / app, "--no-cuts", "--nodes", "2", "--run-config", keys)
    assert (done.exit_code, said in done.stderr) == (1, True), done.output


@pytest.mark.parametrize("app", ["vision", "language"])
@pytest.mark.parametrize(("epochs", "remarked"), [(11, True), (10, False)])
def test_a_warm_up_longer_than_the_run_is_remarked(app: str, epochs: int, remarked: bool) -> None:
    keys = f"num-server-rounds=5 epochs-per-round=2 warmup-epochs={epochs}.0"
    done = check(APPS / app, "--no-cuts", "--run-config", keys)
    assert done.exit_code == 0, done.output
    said = f"warmup-epochs is {epochs}, but the run has 10 epochs"
    assert (said in " ".join(done.output.split())) is remarked


@pytest.mark.parametrize("app", ["vision", "language"])
@pytest.mark.parametrize(
    ("keys", "remarked"), [("", True), ("link='stream'", False), ("wire-dtype-down='keep'", True)]
)
def test_a_wire_format_that_a_simulation_refuses_is_remarked(
    app: str, keys: str, remarked: bool
) -> None:
    done = check(APPS / app, "--no-cuts", "--run-config", f"wire-dtype='int8' {keys}")
    assert done.exit_code == 0, done.output
    said = (
        "note: a simulation would end with an error: wire-dtype is 'int8', but in a simulation "
        "tensors travel as they are; allowed there is 'keep'"
    )
    assert (said in " ".join(done.output.split())) is remarked


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("support-texts=1", "2 supports, drawn from only 1; a larger support-texts hides more"),
        ("public-samples=1", "2 supports, drawn from only 1; a larger public-samples hides more"),
        ("", ""),
    ],
)
def test_few_supports_are_remarked(keys: str, said: str) -> None:
    done = check(APPS / "language", "--no-cuts", "--nodes", "2", "--run-config", keys)
    assert done.exit_code == 0, done.output
    flat = " ".join(done.output.split())
    assert said in flat
    assert bool(said) is ("hides more" in flat)


def test_a_model_that_is_not_there_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokenizer, too, was asked for from a hub that did not answer: half a minute each time."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    done = check(APPS / "language", "--no-cuts", "-c", "model='nobody/nothing' strategy='USplitSL'")
    assert done.exit_code == 1
    (problem,) = done.stderr.splitlines()
    assert "the model 'nobody/nothing' cannot be used" in problem


def test_layers_of_other_names_get_no_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phi-3 has queries, keys and values in one layer, here under a name that is not known."""
    monkeypatch.setattr("flwr_splitmix.segments.language.layouts.families.ADAPTED", ())
    config = Phi3Config(**GROUPED)
    whole_model(config, dtype="float32").save_pretrained(tmp_path)
    keys = f"model='{tmp_path}' lora-rank=4 max-length=64"
    done = check(APPS / "language", "--no-cuts", "--run-config", keys)
    said = "lora-parts names 'head', which has no layer named q_proj, v_proj to adapt; leave it out"
    assert (done.exit_code, said in done.stderr) == (1, True), done.output


def test_public_texts_that_nothing_uses_are_not_remarked(tmp_path: Path) -> None:
    gpt2(tmp_path, 300).save_pretrained(tmp_path)
    rows = [f"some words,{row % 2}" for row in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["sentence,label", *rows]), encoding="utf-8")
    keys = (
        f"dataset='{tmp_path}/rows.csv' task='classification' max-length=64 head-layers=1 "
        "tail-layers=1 padding-token='<pad>'"
    )
    model = f"model='{tmp_path}'"
    for more, user in {
        f"strategy='USplitFL' {model}": None,
        "strategy='USplitFL'": "the small model's tokenizer",
        f"strategy='MixGuard' secret-tokens=2 {model}": "MixGuard",
        "strategy='MixGuard' secret-tokens=2": "MixGuard and the small model's tokenizer",
    }.items():
        report = check_app(APPS / "language", [f"{keys} {more}"], here=Path.cwd())
        assert report.problems == []
        remarks = [remark for remark in report.remarks if "public is ''" in remark]
        said = f"public is '', so the public texts for {user} are made up ones"
        assert [said in remark for remark in remarks] == ([True] if user else [])


def test_rows_that_are_left_out_are_not_counted(tmp_path: Path) -> None:
    """They were counted: with a quarter of the rows left, no client seemed to lack a batch."""
    rows = [f"{'some words ' * (1 if row % 4 else 40)},{row % 2}" for row in range(80)]
    (tmp_path / "rows.csv").write_text("\n".join(["sentence,label", *rows]), encoding="utf-8")
    keys = (
        f"dataset='{tmp_path}/rows.csv' test-dataset='{tmp_path}/rows.csv' strategy='USplitSL' "
        "task='classification' max-length=30 batch-size=32 long-texts='drop'"
    )
    report = check_app(APPS / "language", [keys], here=Path.cwd(), nodes=2)
    assert report.problems == []
    sizes = [int(number) for number in re.findall(r"\d+", report.facts["clients"])[1:]]
    assert 20 < min(sizes) <= max(sizes) < 40
    assert "has less than one batch of batch-size 32" in " ".join(report.remarks)


def test_a_classifier_of_another_number_of_labels_is_named_by_its_key(tmp_path: Path) -> None:
    """The check passed, and the run ended with two shapes."""
    config = config_of("distilbert", "classification")
    whole_model(config, "classification").save_pretrained(tmp_path)
    keys = f"model='{tmp_path}' task='classification' strategy='USplitFL' head-layers=1"
    done = check(APPS / "language", "--no-cuts", "--run-config", f"{keys} tail-layers=1")
    said = "its classifier has 3 classes, but num-labels is 2; take num-labels=3, or for a new"
    assert (done.exit_code, said in done.stderr) == (1, True), done.output


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
    sent = [cut["uplink_bytes"] - 32 * 8 for cut in advised["cuts"]]
    patches = 32 * 8 * 192 * 4
    assert sent[0] == pytest.approx(patches, rel=0.01)
    assert sent[1] - sent[0] == pytest.approx(32 * 192 * 4, rel=0.05)


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
    done = vision_fit.fit(tmp_path, n=2, **values)
    config = vision_fit.read(**{**vision_fit.ONE_STEP, **values})
    geometry = done.segments.lower.geometry
    shape = SmashedShape(4, geometry.patches, geometry.width, geometry.prefix, geometry.grid, 10)
    traffic = traffic_of(config.trial().mixer, shape, 2, config)
    assert done.row["uplink_bytes"] == 2 * 2 * traffic.up
    assert done.row["downlink_bytes"] == 2 * 2 * traffic.down


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
    done = language_app.fit(tmp_path, **values)
    (row,) = done.rows
    config = read_language(**{**language_app.TINY, **values})
    up, down = text_traffic(config, 60, config.small_width)
    assert row["uplink_bytes"] == pytest.approx(2 * up, rel=0.02)
    assert row["downlink_bytes"] == pytest.approx(2 * down, rel=0.02)


def test_a_language_model_has_a_row_for_every_head_and_tail(tmp_path: Path) -> None:
    plot = tmp_path / "cuts.png"
    done = check(
        APPS / "language", "--format", "json", *NETWORK, "--output", str(plot),
        "--run-config", "strategy='USplitSL' small-layers=3",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    cuts = {cut["cut_at"]: cut for cut in report["cuts"]}
    assert len(cuts) == 6  # heads and tails of together at most two of three layers
    assert cuts["head-layers=1 tail-layers=1"]["default"]
    bytes_up = {cut["uplink_bytes"] for cut in report["cuts"]}
    assert len(bytes_up) == 1  # the width is everywhere the same
    parameters = [cuts[f"head-layers={i} tail-layers=0"]["client_parameters"] for i in range(3)]
    assert parameters[2] - parameters[1] == parameters[1] - parameters[0] > 0
    assert plot.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_problem_is_one_red_sentence_and_status_1() -> None:
    done = check(APPS / "vision", "--run-config", "k=3")
    assert done.exit_code == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "k is 3, but only 2 clients take part in a round" in done.stderr
    assert "--nodes 3" in done.stderr
    assert done.stdout == ""


def test_problems_are_in_the_json_too() -> None:
    done = check(APPS / "vision", "--run-config", "stratgy='PSL'", "--format", "json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert report["cuts"] == []
    assert report["problems"] == [
        "run-config has an unknown key 'stratgy'; did you mean 'strategy' or 'straggler'?"
    ]


def test_what_an_app_prints_is_no_part_of_the_report(tmp_path: Path) -> None:
    """`splitmix run` reads the report, and refused each app that printed anything."""
    app = tmp_path / "app"
    shutil.copytree(APPS.parent / "examples" / "other_project", app)
    client = app / "client_app.py"
    client.write_text("print('loading')\n" + client.read_text(encoding="utf-8"), encoding="utf-8")
    done = check(app, "--format", "json")
    assert json.loads(done.stdout)["ok"]
    assert "loading" in done.stderr


def test_devices_that_are_not_here_are_named_once_with_their_keys() -> None:
    both = check(APPS / "vision", "--run-config", "device='gpu0' client-device='gpu0'")
    assert both.exit_code == 1
    assert both.stderr.startswith("run-config: device and client-device are 'gpu0': there is no")
    assert len(both.stderr.strip().splitlines()) == 1
    one = check(APPS / "vision", "--run-config", "client-device='gpu0'")
    assert one.stderr.startswith("run-config: client-device is 'gpu0': there is no device 'gpu0'")


def test_a_model_too_large_for_memory_is_one_sentence() -> None:
    done = check(APPS / "vision", "--no-cuts", "--run-config", "image-size=200000")
    assert done.exit_code == 1
    (said,) = done.stderr.strip().splitlines()
    assert "cannot be built with image-size 200000 and patch-size 8: " in said
    assert said.endswith(
        "more memory than there is; a smaller image-size or a larger patch-size needs less"
    )


def test_the_tables_are_printed_with_what_was_measured() -> None:
    done = check(APPS / "vision", "--run-config", "model='lenet5'", "--rtt", "40ms")
    assert done.exit_code == 0, done.output
    assert "round trip 40 ms," in done.stdout
    assert "FLOP/s (measured here)" in done.stdout
    for cut in ("conv1", "pool1", "conv2 *"):
        assert any(line.startswith(f"{cut} ") for line in done.stdout.splitlines())


def test_a_directory_that_takes_no_runs_is_remarked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, possible in ((tmp_path / "file", False), (tmp_path / "new" / "home", True)):
        report = check(
            APPS / "vision", "--format", "json", "--run-config", f"run-dir='{place}'"
        )  # fmt: skip
        remarks = " ".join(json.loads(report.stdout)["remarks"])
        assert report.exit_code == 0
        assert (
            f"runs would be written to {place}/runs, which is not possible" in remarks
        ) != possible
        assert not (tmp_path / "new").exists()


def test_a_run_dir_that_is_no_text_is_one_sentence() -> None:
    done = check(APPS / "vision", "--nodes", "2", "--run-config", "run-dir=7")
    assert done.exit_code == 1
    assert "run-dir is 7; input should be a valid string" in done.stderr


def test_a_picture_that_cannot_be_is_said(tmp_path: Path) -> None:
    wrong = check(APPS / "vision", "-o", str(tmp_path / "cuts.txt"))
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert "a plot's name ends in .pdf, .png, .svg" in wrong.stderr
    picture = str(tmp_path / "cuts.png")
    both = check(APPS / "vision", "--no-cuts", "-o", picture)
    assert (both.exit_code, both.stdout) == (1, "")
    assert both.stderr == (
        "-o plots the cuts, and --no-cuts leaves them out; leave out one of the two\n"
    )
    assert CliRunner().invoke(app, ["new", "own", str(tmp_path / "mine")]).exit_code == 0
    own = check(tmp_path / "mine", "-o", picture)
    assert own.exit_code == 1
    assert own.stderr.startswith(f"{picture} was not written: ")
    assert own.stderr.endswith("leave out -o\n")
    assert "lower segment" in own.stdout


def test_a_component_needs_a_name_in_its_module(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["new", "own", str(tmp_path / "mine")]).exit_code == 0
    file = tmp_path / "mine" / "pyproject.toml"
    described = file.read_text(encoding="utf-8")
    file.write_text(described.replace("client_app:app", "client_app"), encoding="utf-8")
    done = check(tmp_path / "mine")
    assert done.exit_code == 1
    assert done.stderr.endswith(
        " has clientapp = 'client_app'; it must be module:name, as in clientapp = "
        '"client_app:app"\n'
    )


def test_flower_is_not_started_and_little_is_loaded() -> None:
    """Datasets, Ray, transformers and pandas take seconds each."""
    program = (
        "import subprocess, sys\n"
        "def started(self, arguments, *a, **k):\n"
        "    print('started:', arguments)\n"
        "    raise OSError('no process')\n"
        "subprocess.Popen.__init__ = started  # torch asks ldconfig and gcc, and can do without\n"
        "from flwr_splitmix.cli import app\n"
        f"app(['check', {str(APPS / 'vision')!r}, '--no-cuts'], standalone_mode=False)\n"
        "heavy = {'datasets', 'flwr_datasets', 'ray', 'transformers', 'matplotlib', 'wandb'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=dict(os.environ), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "loaded: []" in done.stdout
    started = re.findall("started: (.*)", done.stdout)
    assert not [arguments for arguments in started if re.search(r"flwr|flower|ray", arguments)]
