"""`splitmix check`: what it finds, how it says so, and that it starts nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import Phi3Config
from typer.testing import CliRunner

from flwr_splitmix.apps.checking.app import check_app
from flwr_splitmix.cli import app
from tests.apps.app_config import APPS
from tests.apps.language.test_texts import gpt2
from tests.cli.apps.check_command import check
from tests.segments.language.tiny_models import GROUPED, config_of, whole_model


@pytest.mark.parametrize(
    ("app", "keys", "message"),
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
        ("vision", "label='latest'", "run-config: label is 'latest', which means the newest run"),
        ("language", "label='latest'", "run-config: label is 'latest', which means the newest"),
        ("language", "support-texts=400", "support-texts is 400, of 400 public texts"),
        ("language", "samples-per-client=1001", "(samples-per-client); use up to 1000"),
    ],
)
def test_what_would_end_a_run_is_named_by_its_key(app: str, keys: str, message: str) -> None:
    result = check(APPS / app, "--no-cuts", "--nodes", "2", "--run-config", keys)
    assert (result.exit_code, message in result.stderr) == (1, True), result.output


@pytest.mark.parametrize("app", ["vision", "language"])
@pytest.mark.parametrize(("epochs", "remarked"), [(11, True), (10, False)])
def test_a_warm_up_longer_than_the_run_is_remarked(app: str, epochs: int, remarked: bool) -> None:
    keys = f"num-server-rounds=5 epochs-per-round=2 warmup-epochs={epochs}.0"
    result = check(APPS / app, "--no-cuts", "--run-config", keys)
    assert result.exit_code == 0, result.output
    remark = f"warmup-epochs is {epochs}, but the run counts 10 epochs"
    assert (remark in " ".join(result.output.split())) is remarked


@pytest.mark.parametrize(
    ("keys", "remark"),
    [
        ("support-texts=1", "drawn from only 1 distinct; a larger support-texts hides more"),
        ("public-samples=1", "drawn from only 1 distinct; a larger public-samples hides more"),
        ("", ""),
    ],
)
def test_few_supports_are_remarked(keys: str, remark: str) -> None:
    result = check(APPS / "language", "--no-cuts", "--nodes", "2", "--run-config", keys)
    assert result.exit_code == 0, result.output
    flat = " ".join(result.output.split())
    assert remark in flat
    assert bool(remark) is ("hides more" in flat)


def test_supports_that_are_the_same_text_are_remarked(tmp_path: Path) -> None:
    """Larger public-samples would not help: it is 0, which stands for all texts."""
    sentence = "The quick brown fox jumps over the lazy dog near the river."
    (tmp_path / "public.txt").write_text(f"{sentence}\n\n" * 12, encoding="utf-8")
    keys = f"public='{tmp_path}/public.txt' public-unit='paragraph'"
    report = check_app(APPS / "language", [keys], here=Path.cwd())
    message = (
        "2 supports, drawn from only 1 distinct; a public with at least 2 distinct texts hides"
    )
    assert any(message in remark for remark in report.remarks), report


def test_a_model_that_is_not_there_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that does not answer takes half a minute, which its tokenizer must not take again."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = check(
        APPS / "language", "--no-cuts", "-c", "model='nobody/nothing' strategy='USplitSL'"
    )
    assert result.exit_code == 1
    (problem,) = result.stderr.splitlines()
    assert "the model 'nobody/nothing' cannot be used" in problem


def test_layers_of_other_names_get_no_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phi-3 has queries, keys and values in one layer, here under a name that is not known."""
    monkeypatch.setattr("flwr_splitmix.segments.language.layouts.families.ADAPTED_LAYERS", ())
    config = Phi3Config(**GROUPED)
    whole_model(config, dtype="float32").save_pretrained(tmp_path)
    keys = f"model='{tmp_path}' lora-rank=4 max-length=64"
    result = check(APPS / "language", "--no-cuts", "--run-config", keys)
    message = (
        "lora-parts names 'head', which has no layer named q_proj, v_proj to adapt; leave it out"
    )
    assert (result.exit_code, message in result.stderr) == (1, True), result.output


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
        message = f"public is '', so the public texts for {user} are made up ones"
        assert [message in remark for remark in remarks] == ([True] if user else [])


def test_rows_that_are_left_out_are_not_counted(tmp_path: Path) -> None:
    """Where a quarter of the rows is left, some clients lack a batch."""
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
    assert "have less than one batch of batch-size 32: examples" in " ".join(report.remarks)


def test_a_classifier_of_another_number_of_labels_is_named_by_its_key(tmp_path: Path) -> None:
    """Otherwise the check would pass, and the run end with two shapes."""
    config = config_of("distilbert", "classification")
    whole_model(config, "classification").save_pretrained(tmp_path)
    keys = f"model='{tmp_path}' task='classification' strategy='USplitFL' head-layers=1"
    result = check(APPS / "language", "--no-cuts", "--run-config", f"{keys} tail-layers=1")
    message = "its classifier has 3 classes, but num-labels is 2; take num-labels=3, or for a new"
    assert (result.exit_code, message in result.stderr) == (1, True), result.output


def test_a_problem_is_one_red_sentence_and_status_1() -> None:
    result = check(APPS / "vision", "--run-config", "k=3")
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "k is 3, but only 2 clients take part in a round" in result.stderr
    assert "--nodes 3" in result.stderr
    assert result.stdout == ""


def test_problems_are_in_the_json_too() -> None:
    result = check(APPS / "vision", "--run-config", "stratgy='PSL'", "--format", "json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["ok"] is False
    assert report["cuts"] == []
    assert report["problems"] == [
        "run-config has an unknown key 'stratgy'; did you mean 'strategy' or 'straggler'?"
    ]


def test_what_an_app_prints_is_no_part_of_the_report(tmp_path: Path) -> None:
    """`splitmix run` reads the report, and could not read one with other lines in it."""
    app = tmp_path / "app"
    shutil.copytree(APPS.parent / "examples" / "other_project", app)
    client = app / "client_app.py"
    client.write_text("print('loading')\n" + client.read_text(encoding="utf-8"), encoding="utf-8")
    result = check(app, "--format", "json")
    assert json.loads(result.stdout)["ok"]
    assert "loading" in result.stderr


def test_devices_that_are_not_here_are_named_once_with_their_keys() -> None:
    both = check(APPS / "vision", "--run-config", "device='gpu0' client-device='gpu0'")
    assert both.exit_code == 1
    assert both.stderr.startswith("run-config: device and client-device are 'gpu0': device")
    assert len(both.stderr.strip().splitlines()) == 1
    one = check(APPS / "vision", "--run-config", "client-device='gpu0'")
    assert one.stderr.startswith("run-config: client-device is 'gpu0': device 'gpu0' is not")


def test_a_model_too_large_for_memory_is_one_sentence() -> None:
    result = check(APPS / "vision", "--no-cuts", "--run-config", "image-size=200000")
    assert result.exit_code == 1
    (message,) = result.stderr.strip().splitlines()
    assert "cannot be built with image-size 200000 and patch-size 8: " in message
    assert message.endswith(
        "more memory than there is; a smaller image-size or a larger patch-size needs less"
    )


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
    result = check(APPS / "vision", "--nodes", "2", "--run-config", "run-dir=7")
    assert result.exit_code == 1
    assert "run-dir is 7; input should be a valid string" in result.stderr


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
    result = check(tmp_path / "mine", "-o", picture)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{picture} was not written: ")
    assert result.stderr.endswith("leave out -o\n")
    assert "lower segment" in result.stdout


def test_a_component_needs_a_name_in_its_module(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["new", "own", str(tmp_path / "mine")]).exit_code == 0
    file = tmp_path / "mine" / "pyproject.toml"
    described = file.read_text(encoding="utf-8")
    file.write_text(described.replace("client_app:app", "client_app"), encoding="utf-8")
    result = check(tmp_path / "mine")
    assert result.exit_code == 1
    assert result.stderr.endswith(
        " has clientapp = 'client_app'; it must be module:name, as in clientapp = "
        '"client_app:app"\n'
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("lr='x'", "lr is 'x', of type str, and its default in pyproject.toml is 0.1, of type flo"),
        (
            "lr=true",
            "lr is True, of type bool, and its default in pyproject.toml is 0.1, of type f",
        ),
        ("num-server-rounds=2.0", "num-server-rounds is 2.0, of type float, and its default in"),
        ("lr=1 num-server-rounds=2", ""),
    ],
)
def test_an_own_apps_value_of_another_type_than_its_default_is_told(
    keys: str, message: str, tmp_path: Path
) -> None:
    """Flower looks only whether there is such a key, so the run would fail where it is used."""
    assert CliRunner().invoke(app, ["new", "own", str(tmp_path / "mine")]).exit_code == 0
    file = tmp_path / "mine" / "pyproject.toml"
    with file.open("a", encoding="utf-8") as described:
        described.write("config = { lr = 0.1, num-server-rounds = 3 }\n")
    result = check(tmp_path / "mine", "--run-config", keys)
    shown = " ".join(result.output.split())
    assert ("of type" in shown) == bool(message)
    assert message in shown
    assert result.exit_code == 0


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
    process = subprocess.run(
        [sys.executable, "-c", program], env=dict(os.environ), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "loaded: []" in process.stdout
    started = re.findall("started: (.*)", process.stdout)
    assert not [arguments for arguments in started if re.search(r"flwr|flower|ray", arguments)]
