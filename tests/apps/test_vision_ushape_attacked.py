"""A run of apps/vision in the U shape, attacked: images from messages, labels from gradients."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from torch import Tensor
from typer.testing import CliRunner

from flwr_splitmix.apps.vision.attacked import attacked_run
from flwr_splitmix.apps.vision.attacked_ushape import AttackedImages, HidingEnds
from flwr_splitmix.apps.vision.data import client_images
from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.cli import app
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.attack_recording import trace_dir
from tests.apps.sent_batches import SentBatches, damage_steps, divide
from tests.apps.ushape_fit import Fitted, fit

TRAINED: dict[str, Any] = {
    "steps_per_round": 10,
    "batch_size": 25,
    "samples_per_client": 200,
}


def attack(fitted: Fitted, *arguments: str) -> Result:
    home = str(fitted.run.path.parents[1])
    command = ["attack", "run", fitted.run.id, "--run-dir", home, "--format", "json", *arguments]
    return CliRunner().invoke(app, command)


def measured(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return {entry["metric"]: entry for entry in json.loads(result.stdout)}


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    return fit(tmp_path_factory.mktemp("averaged"), **TRAINED, strategy="USplitFL")


@pytest.fixture(scope="module")
def naive(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """Clients mix the images of their own batches."""
    values = {**TRAINED, "steps_per_round": 1}
    return fit(tmp_path_factory.mktemp("naive"), **values, strategy="NaiveMixSL")


def test_an_averaged_head_is_read(averaged: Fitted) -> None:
    """Nothing is recorded: images are released again."""
    error = measured(attack(averaged, "--attack", "linear", "--victims", "100"))["MSE"]
    assert error["method"] == "USplitFL"
    assert error["value"] < 0.5 * error["floor"]


def test_a_head_is_simulated(averaged: Fitted) -> None:
    error = measured(attack(averaged, "--attack", "simulate", "--victims", "25"))["MSE"]
    assert 0 < error["value"] < 1


def test_labels_are_read_from_returned_gradients(averaged: Fitted) -> None:
    entries = measured(attack(averaged, "--attack", "labels-gradient", "--victims", "200"))
    (main,) = (entry for entry in entries.values() if entry["main"])
    assert main["value"] > main["floor"] + 0.3, entries


def test_the_results_of_an_attack_are_shown(averaged: Fitted) -> None:
    measured(attack(averaged, "--attack", "linear", "--victims", "25"))
    home = str(averaged.run.path.parents[1])
    shown = CliRunner().invoke(app, ["attack", "show", averaged.run.id, "--run-dir", home])
    assert "linear by server on USplitFL" in " ".join(shown.output.split())


def test_the_server_has_no_head_that_is_not_averaged(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **TRAINED, strategy="USplitSL")
    refused = attack(fitted, "--attack", "linear")
    assert refused.exit_code == 1
    assert "--assume lower" in " ".join(refused.output.split())
    options = ("--victims", "50", "--assume", "lower")
    error = measured(attack(fitted, "--attack", "linear", *options))["MSE"]
    assert error["value"] < 0.5 * error["floor"]


@pytest.mark.parametrize("name", ["USplitSL", "USplitFL"])
def test_where_tails_alone_learn_the_head_is_known_and_no_gradient_leaves(
    name: str, tmp_path: Path
) -> None:
    fitted = fit(tmp_path, **TRAINED, strategy=name, learns="tail")
    error = measured(attack(fitted, "--attack", "linear", "--victims", "50"))["MSE"]
    assert error["value"] < 0.5 * error["floor"]
    refused = attack(fitted, "--attack", "labels-gradient", "--victims", "50")
    assert refused.exit_code == 1
    assert "no gradients" in " ".join(refused.output.split())


def test_a_frozen_heads_own_statistics_are_not_known(tmp_path: Path) -> None:
    """BatchNorm continues to measure in it, at the client alone."""
    sizes: dict[str, Any] = {"model": "xcit_nano_12_p8_224", "patch_size": 8, "depth": 3}
    fitted = fit(tmp_path, **sizes, strategy="USplitSL", learns="tail")
    attacked, _ = case_of(fitted.run)
    client_ends = attacked.knowledge.lower_of(0)
    server_ends = attacked.known_to("server").lower_of(0)
    assumed_ends = attacked.known_to("server", ["lower"]).lower_of(0)
    assert isinstance(client_ends, HidingEnds)
    assert isinstance(server_ends, HidingEnds)
    assert isinstance(assumed_ends, HidingEnds)
    measured_by_it = [n for n, _ in client_ends.named_buffers() if n.endswith("running_mean")]
    assert measured_by_it
    for name in measured_by_it:
        assert not torch.equal(client_ends.get_buffer(name), server_ends.get_buffer(name))
        assert torch.equal(client_ends.get_buffer(name), assumed_ends.get_buffer(name))
    for name, parameter in client_ends.head.named_parameters():
        assert torch.equal(parameter, server_ends.head.get_parameter(name))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--attack", "linear", "--view", "upper only"),
            "in the U shape no images of several clients are mixed",
        ),
        (("--attack", "linear", "--assume", "upper"), "'lower', the head, can be assumed"),
        (("--attack", "membership"), "labels"),
        (("--attack", "sip"), "unknown attack on images 'sip'"),
        (("--attack", "separate"), "no mixture of several clients' images"),
        (("--attack", "attribute"), "no mixture of several clients' images"),
    ],
)
def test_what_is_not_there_is_said(naive: Fitted, arguments: tuple[str, ...], message: str) -> None:
    refused = attack(naive, *arguments)
    assert refused.exit_code == 1
    assert message in " ".join(refused.output.split())


def case_of(run: Run) -> tuple[AttackedImages, Any]:
    attacked = attacked_run(run)
    assert isinstance(attacked, AttackedImages)
    return attacked, attacked.case("server", trained=20, held_out=10)


def inputs(attacked: AttackedImages, case: Any, number: int) -> Tensor:
    rows = case.truth.origins[number].sources[:, 0]
    return attacked.knowledge.normalise(case.truth.pictures.images[rows].float())


def test_a_view_has_messages_and_returned_gradients_and_no_labels(averaged: Fitted) -> None:
    attacked, case = case_of(averaged.run)
    assert int(case.truth.trained.sum()) == 20
    assert len(case.truth.trained) == 30
    client = averaged.clients[0]
    arrays = {name: torch.tensor(a.numpy()) for name, a in averaged.result.arrays.items()}
    client.ends.load(arrays)
    release = case.view.releases[0]
    assert release.labels is None
    assert release.loss is None
    images = inputs(attacked, case, 0)
    with torch.no_grad():
        messages = client.head.eval()(images)
        outputs = averaged.strategy.trunk.module.eval()(messages)
    torch.testing.assert_close(release.smashed, messages)
    leaf = outputs.requires_grad_()
    labels = case.truth.pictures.labels[case.truth.origins[0].sources[:, 0]]
    loss = torch.nn.functional.cross_entropy(client.tail.eval()(leaf), labels)
    (gradient,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(release.gradient, gradient)


def test_messages_have_the_noise_of_the_method(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **{**TRAINED, "steps_per_round": 1}, strategy="DPForwardSL")
    attacked, case = case_of(fitted.run)
    hiding: Any = fitted.clients[0].hiding
    images = inputs(attacked, case, 0)
    client = case.view.releases[0].client
    with torch.no_grad():
        clean = fitted.clients[client].head.eval()(images)
    norms = clean.flatten(1).norm(dim=1).clamp_min(1.0)
    noise = case.view.releases[0].smashed - clean / norms.view(-1, 1, 1)
    assert float(noise.std()) == pytest.approx(hiding.sigma, rel=0.05)


def test_each_client_trained_on_its_own_images(naive: Fitted) -> None:
    attacked, _ = case_of(naive.run)
    assert set(attacked.vault.data) == {0, 1}


def test_images_are_read_from_a_batch_in_which_they_are_mixed(naive: Fitted) -> None:
    """With 25 images a batch has one solution."""
    options = ("--victims", "50", "--assume", "lower")
    message, batch = (
        measured(attack(naive, "--attack", name, *options))["MSE"]
        for name in ("linear", "solve-batch")
    )
    assert batch["value"] < 0.1 * batch["floor"]
    assert batch["value"] < 0.1 * message["value"]


def test_an_image_is_classified_without_its_neighbours(naive: Fitted) -> None:
    attacked, case = case_of(naive.run)
    images = case.truth.pictures.images[:4].float()
    together = attacked.classify(images)
    torch.testing.assert_close(together[:1], attacked.classify(images[:1]))
    client, inputs_of = naive.clients[0], attacked.knowledge.normalise(images)
    with torch.no_grad():
        answers = naive.strategy.trunk.module.eval()(client.head.eval()(inputs_of))
        torch.testing.assert_close(together, client.tail.eval()(answers))


def test_a_number_of_clients_that_no_node_said_is_guessed_and_told(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **{**TRAINED, "steps_per_round": 1}, strategy="USplitFL")
    reads = ("--attack", "linear", "--victims", "10")
    assert "note: the images are taken as divided among 2 clients" in attack(fitted, *reads).stderr
    divide(fitted.run, {0: 4, 1: 4})
    assert "divided among" not in attack(fitted, *reads).stderr
    divide(fitted.run, {0: 4, 1: 0})
    notes = attack(fitted, *reads).stderr
    assert "among 2 clients" in notes
    assert "the run's nodes changed the number (num-partitions)" in notes
    divide(fitted.run, {0: 4, 1: 4})
    images, _ = client_images(fitted.config, 1, 4)
    attacked, _ = case_of(fitted.run)
    assert np.array_equal(attacked.vault.data[1].labels, images.labels)


@pytest.mark.parametrize(
    ("strategy", "learns"),
    [("USplitSL", "all"), ("USplitSL", "tail"), ("NaiveMixSL", "all"), ("DPForwardSL", "all")],
)
def test_what_a_recorded_run_sent_is_attacked(
    strategy: str, learns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a new release of its images by heads as they are in the end."""
    sent_batches = SentBatches(monkeypatch)
    values = {"steps_per_round": 3, "samples_per_client": 10, "num_server_rounds": 2}
    fitted = fit(tmp_path, **values, strategy=strategy, learns=learns, record_attacks=True)
    attacked = attacked_run(fitted.run)
    case = attacked.case("server", trained=17, held_out=4)
    recorded = case.view.releases[:6]  # three steps of two clients with four images each
    assert [(r.server_round, r.step, r.client) for r in recorded] == [
        (2, step, client) for step in range(3) for client in range(2)
    ]
    for release, origin in zip(recorded, case.truth.origins, strict=False):
        inputs, messages, returned = sent_batches.of(release.client, -3 + release.step)
        images = case.truth.pictures.images[origin.sources[:, 0]]
        torch.testing.assert_close(attacked.knowledge.normalise(images), inputs)
        assert torch.equal(release.smashed, messages[0])
        if learns == "tail":
            assert release.gradient is None
        else:
            assert release.gradient is not None
            assert torch.equal(release.gradient, returned[0])
        assert (release.labels, release.loss) == (None, None)
    assert int((~case.truth.trained).sum()) == 4
    assert all(case.truth.trained[o.sources[:, 0]].all() for o in case.truth.origins[:6])
    anew = attacked.case("server", trained=17, held_out=4, again=True)
    assert not torch.equal(anew.view.releases[0].smashed, recorded[0].smashed)


def test_a_recorded_run_is_attacked_by_its_command(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **TRAINED, strategy="USplitFL", record_attacks=True)
    error = measured(attack(fitted, "--attack", "linear", "--victims", "100"))["MSE"]
    assert error["value"] < 0.5 * error["floor"]
    entries = measured(attack(fitted, "--attack", "labels-gradient", "--victims", "200"))
    (main,) = (entry for entry in entries.values() if entry["main"])
    assert main["value"] > main["floor"] + 0.2, entries


@pytest.mark.parametrize("learns", ["all", "tail"])
def test_without_a_recorded_step_that_serves_images_are_released_once_more(
    learns: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that is not recorded at all is attacked in this way, too."""
    values = {**TRAINED, "steps_per_round": 3}
    fitted = fit(tmp_path, **values, strategy="USplitFL", learns=learns, record_attacks=True)
    reads = ("--attack", "linear", "--victims", "30")
    note = "note: the recording is not used: of its 3 steps, none that can be read has what the "
    assert note not in attack(fitted, *reads).stderr
    damage_steps(fitted.run)
    caplog.clear()
    released = attack(fitted, *reads)
    assert measured(released)["MSE"]["value"] < 1
    assert note + "clients whose data are here sent; images are released once more" in (
        released.stderr
    )
    (warning,) = (line for line in caplog.messages if "recorded step" in line)
    assert warning.startswith("3 recorded steps cannot be read and are left out")


def test_a_recording_of_clients_whose_images_are_not_here_is_not_used(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitSL", record_attacks=True)
    trace = DiskTrace(trace_dir(fitted.run))
    (step,) = trace.steps()
    assert isinstance(step, UShapeStep)
    others: dict[str, Any] = {
        kind: {client + 5: entry for client, entry in getattr(step, kind).items()}
        for kind in ("messages", "masks", "outputs", "returned", "gradients", "drawn")
    }
    trace.add(replace(step, **others))
    attacked, case = case_of(fitted.run)
    assert not attacked.recorded
    assert attacked.remarks[-1].startswith("the recording is not used: of its 1 step, none")
    assert int(case.truth.trained.sum()) == 16


def test_a_recording_of_other_heads_is_refused(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="USplitFL", record_attacks=True)
    file = fitted.run.path / "config.json"
    file.write_text(json.dumps({**fitted.run.config, "batch-size": 8}))
    refused = attack(fitted, "--attack", "linear")
    assert refused.exit_code == 1
    assert "client 0 sent other messages in step 0 of round 1 than its head makes of 8 images" in (
        refused.stderr
    )


def test_the_help_says_which_runs_are_attacked() -> None:
    shown = CliRunner().invoke(app, ["attack", "list", "--help"])
    assert "on all runs of the vision app in the U shape" in " ".join(shown.output.split())
