"""`splitmix attack` on a recorded run of the vision app."""

from __future__ import annotations

import copy
import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from PIL import Image

from flwr_splitmix.apps.vision.attacked import attacked_run
from flwr_splitmix.apps.vision.client import client_fn
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.model import segments_of
from flwr_splitmix.apps.vision.server import make_strategy
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.running.request import AttackRequest
from flwr_splitmix.cli.attack.images import _public_images
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.attack_recording import attacks_dir, recording_of, trace_dir, write_facts
from tests.apps import vision_fit
from tests.apps.app_config import app_run_config
from tests.apps.vision_app import context, run_config

Splitmix = Callable[..., Result]


@pytest.fixture(scope="module")
def recorded_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("recorded")
    for strategy in ("SFL", "CutMixSL"):
        vision_fit.fit(
            home, 2, strategy=strategy, record_attacks=True, steps_per_round=2,
            num_server_rounds=2, samples_per_client=32, batch_size=8,
        )  # fmt: skip
        write_facts(Run.open("latest", home=home), {"clients": 2})
    return home


@pytest.fixture
def home(recorded_home: Path, tmp_path: Path) -> Path:
    """Copy it: tests may change it."""
    return Path(shutil.copytree(recorded_home, tmp_path / "home"))


def run_of(home: Path, strategy: str) -> Run:
    return next(run for run in Run.all(home) if run.config["strategy"] == strategy)


def test_the_name_of_a_picture_is_checked_before_the_matrix_is_run(splitmix: Splitmix) -> None:
    result = splitmix("attack", "matrix", "images", "-o", "x.txt")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "a plot's name ends in .pdf, .png, .svg" in result.stderr


@pytest.mark.parametrize(
    "command", ["attack matrix images", "attack matrix texts", "experiment run cutmixsl-table2"]
)
@pytest.mark.parametrize("cells", ["", " "])
def test_an_empty_choice_of_cells_does_not_mean_all(
    command: str, cells: str, splitmix: Splitmix, tmp_path: Path
) -> None:
    options = ["--jobs", "0", "--run-dir", str(tmp_path)]  # no job: else it would begin
    result = splitmix(*command.split(), "--cells", cells, *options)
    assert (result.exit_code, result.stderr) == (
        1, "--cells is empty; name cells, or leave the option out for all of them\n"
    )  # fmt: skip


def test_a_recording_run_says_so(splitmix: Splitmix, home: Path) -> None:
    run = run_of(home, "SFL")
    shown = splitmix("show", run.id).stdout
    assert "RECORDED" in shown
    assert f"splitmix attack forget {run.id}" in shown
    facts = json.loads(splitmix("show", run.id, "--format", "json").stdout)
    assert facts["recording"]["steps"] == 4
    modes = {
        stat.S_IMODE(path.stat().st_mode) for path in attacks_dir(run).rglob("*") if path.is_file()
    }
    assert modes == {0o600}


def test_run_show_and_forget(splitmix: Splitmix, home: Path, tmp_path: Path) -> None:
    run = run_of(home, "SFL")
    result = splitmix(
        "attack", "run", run.id, "--attack", "linear", "--victims", "16", "--format", "json"
    )
    assert result.exit_code == 0, result.output
    entries = {entry["metric"]: entry for entry in json.loads(result.stdout)}
    assert entries["MSE"]["method"] == "SFL"
    assert entries["MSE"]["value"] < 0.01 < entries["MSE"]["floor"]
    picture = tmp_path / "grid.png"
    shown = splitmix("attack", "show", run.id, "-o", str(picture))
    assert shown.exit_code == 0, shown.output
    titles = " ".join(shown.stdout.split())
    assert (
        f"linear by server on SFL ({run.id}, scale smoke, seed 0, 32 samples, --victims 16)"
        in titles
    )
    with Image.open(picture) as image:
        assert min(image.size) > 100
    forgotten = splitmix("attack", "forget", run.id)
    assert forgotten.exit_code == 0
    assert "in progress" not in forgotten.stdout
    assert recording_of(run) is None
    assert not attacks_dir(run).exists()
    again = splitmix("attack", "run", run.id, "--attack", "linear")
    assert again.exit_code == 1
    assert "record-attacks=true" in again.stderr


def test_a_run_in_progress_records_nothing_further(splitmix: Splitmix, home: Path) -> None:
    run = run_of(home, "SFL")
    (run.path / "summary.json").unlink(missing_ok=True)
    with run.held():
        lines = splitmix("attack", "forget", run.id).stdout.splitlines()
    assert lines[1] == "the run is in progress, and records nothing further until it is resumed"


def test_a_result_keeps_what_its_adversary_was_given(splitmix: Splitmix, home: Path) -> None:
    run = run_of(home, "SFL")
    for options in ((), ("--assume", "lower", "--seed", "3")):
        result = splitmix(
            "attack", "run", run.id, "--attack", "linear", "--victims", "16", *options
        )
        assert result.exit_code == 0, result.output
    titles = " ".join(splitmix("attack", "show", run.id).stdout.split())
    assert (
        f"linear by server on SFL ({run.id}, scale smoke, seed 0, 32 samples, --victims 16)"
        in titles
    )
    phrase = "scale smoke, seed 3, 32 samples, --victims 16"
    assert f"linear by server, given lower, on SFL ({run.id}, {phrase})" in titles


def test_a_run_without_a_recording_says_how_to_record(splitmix: Splitmix, finished: Run) -> None:
    refused = splitmix("attack", "run", finished.id, "--attack", "linear")
    assert refused.exit_code == 1
    assert "an app of its own" in refused.stderr
    config = app_run_config("vision", {"strategy": "CutMixSFL"})
    (finished.path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = splitmix("attack", "run", finished.id, "--attack", "linear")
    assert result.exit_code == 1
    assert '--run-config "record-attacks=true"' in result.stderr


def test_what_is_missing_is_said_in_a_sentence(splitmix: Splitmix, home: Path) -> None:
    run = run_of(home, "CutMixSL").id
    lacking = splitmix(
        "attack", "run", run, "--attack", "linear", "--view", "eavesdropper", "--victims", "8"
    )
    assert (lacking.exit_code, "no trained lower segment" in lacking.stderr) == (1, True)
    assert lacking.stderr.endswith(": --assume lower\n")
    unknown = splitmix("attack", "run", run, "--attack", "guess")
    assert (unknown.exit_code, "unknown attack on images 'guess'" in unknown.stderr) == (1, True)
    nothing = splitmix("attack", "show", run)
    assert (nothing.exit_code, "has been scored yet" in nothing.stderr) == (1, True)
    assert f"splitmix attack run {run} --attack NAME" in nothing.stderr


def test_a_server_has_the_runs_first_weights_and_is_told_of_the_trained_ones(
    splitmix: Splitmix, home: Path
) -> None:
    run = run_of(home, "CutMixSL").id
    result = splitmix("attack", "run", run, "--attack", "linear", "--victims", "8")
    assert result.exit_code == 0
    assert "first weights" in result.stderr
    assert "--assume lower" in result.stderr


@pytest.mark.parametrize("strategy", ["SFL", "CutMixSL"])
def test_a_configuration_that_does_not_fit_the_checkpoint_is_said(
    strategy: str, splitmix: Splitmix, home: Path
) -> None:
    run = run_of(home, strategy)
    (run.path / "config.json").write_text(json.dumps({**run.config, "image-size": 64}))
    refused = splitmix("attack", "run", run.id, "--attack", "linear", "--assume", "lower")
    assert (refused.exit_code, refused.stderr) == (
        1,
        f"run {run.id}: the checkpoint of round 2 does not fit config.json (model, depth, "
        "image-size, dataset, ...): restore it\n",
    )


def test_the_remedy_is_what_can_be_given_to_the_adversary(splitmix: Splitmix, home: Path) -> None:
    run = run_of(home, "CutMixSL").id
    for attack, view, remedy in (
        ("membership", "eavesdropper", ": --assume upper"),
        ("separate", "sum only", "only such are taken apart"),  # a lower segment is no help
    ):
        result = splitmix(
            "attack", "run", run, "--attack", attack, "--view", view, "--victims", "8"
        )
        assert result.exit_code == 1
        assert result.stderr.splitlines()[-1].endswith(remedy)


@pytest.mark.parametrize("seconds", ["-1", "nan"])
def test_a_time_limit_is_a_time(seconds: str, splitmix: Splitmix, home: Path) -> None:
    run = run_of(home, "SFL").id
    result = splitmix("attack", "run", run, "--attack", "linear", "--seconds", seconds)
    assert result.exit_code == 2
    assert "--seconds" in result.stderr


def test_fewer_victims_than_asked_for_are_counted(splitmix: Splitmix, home: Path) -> None:
    result = splitmix(
        "attack", "run", run_of(home, "SFL").id, "--attack", "linear", "--victims", "100000"
    )
    assert result.exit_code == 0, result.output
    (note,) = [line for line in result.stderr.splitlines() if line.startswith("note: ")]
    assert note == (
        "note: --victims asks for 100000 images of each kind; available: 64 training and "
        "1000 held-out ones"
    )


def test_a_recording_of_which_nothing_can_be_read_is_an_error(
    splitmix: Splitmix, home: Path
) -> None:
    run = run_of(home, "SFL")
    for step in trace_dir(run).glob("step-*"):
        step.write_bytes(step.read_bytes()[:500])
    result = splitmix("attack", "run", run.id, "--attack", "linear", "--victims", "16")
    assert result.exit_code == 1
    assert f"none of the 4 recorded steps of run {run.id} can be read" in result.stderr
    assert result.stdout == ""


def test_separate_lower_segments_are_those_of_the_clients(splitmix: Splitmix, home: Path) -> None:
    run = run_of(home, "CutMixSL").id
    result = splitmix(
        "attack", "run", run, "--attack", "linear", "--assume", "lower", "--victims", "8",
        "--public", "fashion-mnist-small", "--format", "json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    entries = {entry["metric"]: entry for entry in json.loads(result.stdout)}
    assert entries["MSE"]["value"] < entries["MSE"]["floor"]


def test_public_images_of_other_channels_are_refused_with_both_shapes(
    splitmix: Splitmix, home: Path, tmp_path: Path
) -> None:
    for split in ("train", "test"):
        for name in ("one", "two"):
            folder = tmp_path / "colour" / split / name
            folder.mkdir(parents=True)
            Image.new("RGB", (40, 40), (200, 10, 10)).save(folder / "0.png")
    result = splitmix(
        "attack", "run", run_of(home, "SFL").id, "--attack", "linear", "--victims", "8",
        "--public", str(tmp_path / "colour"),
    )  # fmt: skip
    assert result.exit_code == 1
    assert "(3, 32, 32)" in result.stderr
    assert "(1, 32, 32)" in result.stderr


def test_a_recording_that_was_cut_off_is_attacked_as_far_as_it_goes(
    splitmix: Splitmix, home: Path
) -> None:
    run = run_of(home, "SFL")
    newest = sorted(trace_dir(run).glob("step-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:500])
    assert len(list(DiskTrace(trace_dir(run)).steps())) == 3
    result = splitmix("attack", "run", run.id, "--attack", "linear", "--victims", "16")
    assert result.exit_code == 0, result.output


def test_the_vault_follows_a_resumed_run(tmp_path: Path) -> None:
    """A recording after a pause is known as the one before it."""
    values = run_config(
        **vision_fit.ONE_STEP | {"strategy": "CutMixSL", "record_attacks": True, "seed": 3}
    )
    config = VisionConfig.read(values)
    run = Run.create(values, name="paused", home=tmp_path)
    write_facts(run, {"clients": 2})
    for rounds in (1, 3):  # the second starts behind the first
        clients = [client_fn(context(i, 2, values)) for i in range(2)]
        upper = copy.deepcopy(segments_of(config).upper)
        make_strategy(config, upper, Run.open(run.id, home=tmp_path)).fit(clients, rounds)
    case = attacked_run(run).case("server", trained=64, held_out=0)
    assert [release.server_round for release in case.view.releases] == [1, 1, 2, 2, 3, 3]
    assert bool(case.truth.trained.all())


def test_list_names_needs(splitmix: Splitmix) -> None:
    shown = splitmix("attack", "list").stdout
    assert "linear" in shown
    assert "lower, public data, smashed data" in shown
    (of_texts,) = [line for line in shown.splitlines() if "gradient-ratio" in line]
    assert "texts" in of_texts
    assert "base model, decoder, gradients, several messages" in of_texts


def test_an_attack_of_several_settings_says_what_a_view_lacks(
    splitmix: Splitmix, home: Path
) -> None:
    result = splitmix(
        "attack", "run", run_of(home, "SFL").id, "--attack", "decoder", "--victims", "8",
        "--view", "member of the group", "--assume", "lower",
    )  # fmt: skip
    assert (result.exit_code, "has no smashed data" in result.stderr) == (1, True)


def test_a_seed_is_not_negative(splitmix: Splitmix, home: Path) -> None:
    result = splitmix("attack", "run", run_of(home, "SFL").id, "--attack", "linear", "--seed", "-1")
    assert (result.exit_code, "--seed" in result.stderr) == (2, True)


def test_attacks_on_labels_know_a_sample_of_each_class(splitmix: Splitmix, home: Path) -> None:
    for attack in ("labels-cluster", "labels-gradient"):
        result = splitmix(
            "attack", "run", run_of(home, "SFL").id, "--attack", attack, "--victims", "32",
            "--format", "json",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        (entry,) = json.loads(result.stdout)
        assert entry["metric"] == "labels read"


def test_public_images_are_drawn_from_all_classes_and_none_is_a_clients(
    splitmix: Splitmix, home: Path, tmp_path: Path
) -> None:
    """A folder of pictures is read class by class."""
    run = run_of(home, "SFL")
    attacked = attacked_run(run)
    client_pictures = Pictures.of(attacked.vault.data[0])
    others = attacked.public(300, seed=5)
    folder = tmp_path / "public"
    for name, pictures in (("a-theirs", client_pictures), ("b-others", others)):
        (folder / "train" / name).mkdir(parents=True)
        (folder / "test" / name).mkdir(parents=True)
        for number, image in enumerate(pictures.images[:, 0]):
            picture = Image.fromarray((image * 255).round().to(torch.uint8).numpy())
            for split in ("train", "test"):
                picture.save(folder / split / name / f"{number:03}.png")
    case = attacked.case("server", trained=8, held_out=8)
    request = AttackRequest(attack="linear", adversary="server", victims=8, public=str(folder))
    drawn = _public_images(request, attacked, case, 60)
    assert len(drawn) == 60
    assert len(drawn.without(client_pictures)) == 60
    first = others.without(case.truth.pictures).take(slice(0, 60))
    assert 0 < len(drawn.without(first)) < 60
    for split in ("train", "test"):
        shutil.copytree(folder / split / "a-theirs", tmp_path / "theirs" / split / "a-theirs")
    result = splitmix(
        "attack", "run", run.id, "--attack", "linear", "--public", str(tmp_path / "theirs")
    )
    assert (result.exit_code, "are the run's own" in result.stderr) == (1, True)


def test_a_client_is_named_for_texts_only(splitmix: Splitmix, home: Path) -> None:
    run = run_of(home, "SFL").id
    result = splitmix("attack", "run", run, "--attack", "linear", "--client", "0")
    assert (result.exit_code, "--client is for runs on texts" in result.stderr) == (1, True)


def test_an_attack_of_least_effort_does_not_seem_to_prove_safety(
    splitmix: Splitmix, home: Path
) -> None:
    run, options = run_of(home, "SFL").id, ("--victims", "8", "--format", "json")
    for attack, weak in (("decoder-transformer", True), ("linear", False)):
        result = splitmix("attack", "run", run, "--attack", attack, *options)
        assert result.exit_code == 0, result.output
        entries = {entry["metric"]: entry for entry in json.loads(result.stdout)}
        assert (entries["MSE"]["high"] >= entries["MSE"]["floor"]) is weak
        assert ("use --scale cpu" in result.stderr) is weak
