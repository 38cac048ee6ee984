"""A run's vision model in a folder: what timm, onnxruntime and `splitmix predict` make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from click.testing import Result
from torch import Tensor

from flwr_splitmix.data import load_images
from flwr_splitmix.data.images.preprocessing import Preprocessing
from flwr_splitmix.runs.export import onnx_file
from flwr_splitmix.runs.export.predict import load_segments
from flwr_splitmix.segments import split_shuffled_edge
from flwr_splitmix.words import epsilon_text
from tests.runs.export.conftest import Exported

Make = Callable[..., Exported]


Splitmix = Callable[..., Result]


def first_images() -> Tensor:
    return load_images("fashion-mnist-small").test.batch(np.arange(3))[0]


@torch.no_grad()
def logits_of(exported: Exported, client: int | None = None) -> Tensor:
    """Return what the run's own segments say of the first test images."""
    segments, upper = exported.fitted.segments, exported.fitted.strategy.upper.module.eval()
    lower = segments.lower.eval()
    weights = exported.fitted.lower
    if client is not None:
        weights = exported.fitted.clients[client].weights()
    lower.load_state_dict(weights)
    logits: Tensor = upper(lower(first_images()))
    return logits


def test_timm_loads_the_whole_model(make: Make, splitmix: Splitmix, tmp_path: Path) -> None:
    exported = make("CutMixSFL")
    completed = splitmix("export", exported.run.id, tmp_path / "model")
    assert completed.exit_code == 0, completed.output
    assert f"model: run {exported.run.id} after round 1\n" in completed.stdout
    facts = json.loads((tmp_path / "model" / "splitmix.json").read_text())
    file = tmp_path / "model" / "model.safetensors"
    model = timm.create_model(
        facts["timm"]["name"], checkpoint_path=file, **facts["timm"]["arguments"]
    ).eval()
    with torch.no_grad():
        logits = model(first_images())
    torch.testing.assert_close(logits, logits_of(exported), rtol=1e-4, atol=1e-5)
    described: Any = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(described(first_images()), logits, rtol=1e-5, atol=1e-6)
    assert described.pretrained_cfg["mean"] == [pytest.approx(0.2860)]
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == facts["files"]


@pytest.mark.parametrize(("trusted", "covered"), [(False, "a client's"), (True, "mixtures of")])
def test_a_card_says_once_what_the_epsilon_covers(
    make: Make, splitmix: Splitmix, trusted: bool, covered: str, tmp_path: Path
) -> None:
    exported = make("DPCutMixSFL", sigma_s=5.0, sigma_y=2.0, trusted_mixer=trusted)
    completed = splitmix("export", exported.run.id, tmp_path / "model")
    assert completed.exit_code == 0, completed.output
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert f"It covers {covered}" in card
    assert card.count("another party than the server mixes") == int(trusted)


def test_pictures_are_classified_as_the_run_would(
    make: Make, splitmix: Splitmix, pictures: list[Path], tmp_path: Path
) -> None:
    exported = make("CutMixSFL")
    assert splitmix("export", exported.run.id, tmp_path / "model").exit_code == 0
    completed = splitmix("predict", tmp_path / "model", *pictures, "--format", "json")
    assert completed.exit_code == 0, completed.output
    expected = logits_of(exported).softmax(-1)
    classes = load_images("fashion-mnist-small").classes
    for row, picture in enumerate(json.loads(completed.stdout)):
        assert picture["input"] == str(pictures[row])
        actual = [picture["classes"][name] for name in classes]
        np.testing.assert_allclose(actual, expected[row].numpy(), rtol=1e-4)
        assert list(picture["classes"].values()) == sorted(actual, reverse=True)
    printed = splitmix("predict", tmp_path / "model", pictures[0], "--top", "1").stdout
    likely = classes[int(expected[0].argmax())]
    assert likely in printed
    assert f"{100 * float(expected[0].max()):.1f} %" in printed


def test_onnxruntime_takes_pixels_and_says_what_torch_does(
    make: Make, splitmix: Splitmix, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `onnx`")
    exported = make("CutMixSFL")
    completed = splitmix("export", exported.run.id, tmp_path / "model", "--onnx")
    assert completed.exit_code == 0, completed.output
    facts = json.loads((tmp_path / "model" / "splitmix.json").read_text())
    assert facts["onnx"]["difference"] < onnx_file.TOLERANCE
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    pixels = first_images() * 0.3530 + 0.2860
    for images in (pixels, pixels[:1]):
        (logits,) = session.run(["logits"], {"pixels": images.numpy()})
        expected = logits_of(exported)[: len(images)].numpy()
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
    assert "in onnxruntime" in (tmp_path / "model" / "README.md").read_text()


def test_a_shuffled_edge_has_an_onnx_file_without_its_shuffle(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `onnx`")
    steps = Preprocessing.of(load_images("fashion-mnist-small", image_size=16).train)
    segments = split_shuffled_edge(method="batch", kappa=0.4, image_size=16, depth=2, seed=0)
    file = tmp_path / "model.onnx"
    assert onnx_file.write_onnx(file, onnx_file.PixelsToLogits(*segments, steps), steps) < 1e-5
    pixels = torch.rand(5, 1, 16, 16)
    (logits,) = onnxruntime.InferenceSession(file).run(["logits"], {"pixels": pixels.numpy()})
    lower, upper = (segment.eval() for segment in segments)
    with torch.no_grad():  # which shuffles anew
        expected = upper(lower((pixels - steps.mean[0]) / steps.std[0]))
    np.testing.assert_allclose(logits, expected.numpy(), rtol=1e-3, atol=1e-4)


def test_a_client_of_its_own_is_exported_by_its_number(
    make: Make, splitmix: Splitmix, tmp_path: Path
) -> None:
    exported = make("PSL")
    refused = splitmix("export", exported.run.id, tmp_path / "model")
    assert refused.exit_code == 1
    assert "PSL leaves lower segments with their clients; name one with --client" in refused.stderr
    refused = splitmix("export", exported.run.id, tmp_path / "model", "--client", "7")
    assert "there is no state of client 7 here, only of: 0 and 1\n" in refused.stderr
    completed = splitmix("export", exported.run.id, tmp_path / "model", "--client", "1")
    assert "after round 1, with the segment of client 1\n" in completed.stdout
    model = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    with torch.no_grad():
        logits = model(first_images())
    torch.testing.assert_close(logits, logits_of(exported, 1), rtol=1e-4, atol=1e-5)
    assert (logits - logits_of(exported, 0)).abs().max() > 1e-3
    assert "with the segment of client 1" in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.parametrize(
    ("strategy", "values", "reason"),
    [
        ("SFL", {"model": "lenet5"}, "timm has no lenet5"),
        ("SpectralShuffleSL", {"depth": 2}, "its edge shuffles tokens"),
    ],
)
def test_models_that_timm_has_not_are_exported_in_segments(
    make: Make,
    splitmix: Splitmix,
    pictures: list[Path],
    tmp_path: Path,
    strategy: str,
    values: dict[str, Any],
    reason: str,
) -> None:
    exported = make(strategy, **values)
    completed = splitmix("export", exported.run.id, tmp_path / "model")
    assert completed.exit_code == 0, completed.output
    assert reason in completed.stdout
    assert reason in (tmp_path / "model" / "README.md").read_text()
    assert not (tmp_path / "model" / "model.safetensors").exists()
    lower, upper = load_segments(tmp_path / "model")
    with torch.no_grad():
        logits = upper(lower(first_images()))
    torch.testing.assert_close(logits, logits_of(exported), rtol=1e-4, atol=1e-5)
    assert splitmix("predict", tmp_path / "model", *pictures).exit_code == 0


def test_the_card_says_where_a_model_comes_from(
    make: Make, splitmix: Splitmix, tmp_path: Path
) -> None:
    exported = make("DPCutMixSFL")
    assert splitmix("export", exported.run.id, tmp_path / "model").exit_code == 0
    card = (tmp_path / "model" / "README.md").read_text()
    row = exported.run.rows[-1]
    for sentence in (
        "# vit_tiny_patch16_224, trained by DPCutMixSFL",
        f"Run `{exported.run.id}` after round 1 of 1.",
        "Images are grey, resized (bilinear) to 28 x 28 pixels, padded with black to 32 x 32, "
        "scaled to 0..1 and normalised with mean 0.286 and standard deviation 0.353.",
        "logits: `'T-shirt/top'`, `'Trouser'`, ",  # a name may have a comma
        "fashion-mnist-small, iid among 2 clients, seed 0",
        "Accuracy: was not measured",
        "clipping and Gaussian noise, then as CutMixSL",
        f"Epsilon: {epsilon_text(row['epsilon'])} at delta 1e-05",
        "The lower segment was averaged over the clients, which no epsilon covers.",
    ):
        assert sentence in card
    assert splitmix("export", make("CutMixSFL").run.id, tmp_path / "other").exit_code == 0
    card = (tmp_path / "other" / "README.md").read_text()
    assert "Epsilon: none is accounted for" in card
    assert "some random patches, 1/k of them on average" in card


def test_a_run_of_an_earlier_version_is_exported_all_the_same(
    make: Make, splitmix: Splitmix, tmp_path: Path
) -> None:
    """It lacks a key, and has no record of its inputs."""
    run = make("SFL", samples_per_client=9).run
    file = run.path / "config.json"
    config = json.loads(file.read_text())
    del config["kappa"]
    file.write_text(json.dumps(config))
    (run.path / "inputs.json").unlink()
    refused = splitmix("export", run.id, tmp_path / "model")
    assert refused.exit_code == 1
    assert "run-config lacks 'kappa'; give the folder of the run's app with --app" in refused.stderr
    app = Path(__file__).resolve().parents[3] / "apps" / "vision"
    assert splitmix("export", run.id, tmp_path / "model", "--app", app).exit_code == 0
    facts = json.loads((tmp_path / "model" / "splitmix.json").read_text())
    assert facts["preprocessing"]["mean"] == [0.286]


def test_a_model_of_several_labels_predicts_each_by_itself(
    make: Make, splitmix: Splitmix, pictures: list[Path], tmp_path: Path
) -> None:
    exported = make("CutMixSFL", dataset="fashion-mnist-multi")
    assert "eval_matthews" not in exported.run.rows[-1]  # not evaluated
    folder = tmp_path / "model"
    assert splitmix("export", exported.run.id, folder).exit_code == 0
    assert json.loads((folder / "splitmix.json").read_text())["multi_label"] is True
    assert "may have several of them" in (folder / "README.md").read_text()
    completed = splitmix("predict", folder, pictures[0], "--format", "json")
    assert completed.exit_code == 0, completed.output
    (answer,) = json.loads(completed.stdout)
    assert sum(answer["classes"].values()) > 1.5  # ten probabilities near a half, not one in all
