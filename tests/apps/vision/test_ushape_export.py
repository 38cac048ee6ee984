"""A run of apps/vision in the U shape, exported: timm's whole model, and its predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from click.testing import Result
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.cli import app
from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.runs.export.predict import load_segments
from flwr_splitmix.words import epsilon_text
from tests.apps.ushape_fit import Fitted, fit

TRAINED: dict[str, Any] = {"steps_per_round": 3}


def splitmix(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def export(fitted: Fitted, folder: Path, *arguments: str) -> Result:
    return splitmix(
        "export", fitted.run.id, folder, "--run-dir", fitted.run.path.parents[1], *arguments
    )


def images(fitted: Fitted) -> Tensor:
    pixels: Tensor = images_of(fitted.config).test.batch([0, 1, 2])[0]  # type: ignore[arg-type]
    return pixels


@torch.no_grad()
def logits_of(fitted: Fitted, client: UShapeClient) -> Tensor:
    hidden = images(fitted)
    for part in (client.head, fitted.strategy.trunk.module, client.tail):
        hidden = part.eval()(hidden)
    return hidden


@torch.no_grad()
def exported(fitted: Fitted, folder: Path) -> Tensor:
    lower, upper = load_segments(folder)
    logits: Tensor = upper(lower(images(fitted)))
    return logits


def test_what_was_averaged_is_timms_whole_model(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **TRAINED, head_layers=1, tail_layers=0)
    folder = tmp_path / "model"
    result = export(fitted, folder)
    assert result.exit_code == 0, result.output
    client = fitted.clients[0]
    client.ends.load(to_tensors(fitted.result.arrays))
    expected = logits_of(fitted, client)
    assert torch.equal(exported(fitted, folder), expected)
    whole = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(whole(images(fitted)), expected, rtol=1e-4, atol=1e-5)

    Image.new("L", (28, 28), 200).save(tmp_path / "picture.png")
    predicted = splitmix("predict", folder, tmp_path / "picture.png", "--format", "json")
    assert predicted.exit_code == 0, predicted.output
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "`upper.safetensors` the server's trunk and the client's tail" in card
    assert "Hidden from the server: inputs, labels, logits" in card


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "xcit_nano_12_p8_224"])
def test_a_clients_own_head_and_tail_are_exported(model: str, tmp_path: Path) -> None:
    """With what BatchNorm has measured."""
    fitted = fit(tmp_path, **TRAINED, strategy="USplitSL", model=model)
    folder = tmp_path / "model"
    refused = export(fitted, folder)
    assert refused.exit_code == 1
    assert "USplitSL leaves heads and tails with their clients; name one with" in refused.output
    assert export(fitted, folder, "--client", "1").exit_code == 0
    assert torch.equal(exported(fitted, folder), logits_of(fitted, fitted.clients[1]))


@pytest.mark.parametrize("name", ["USplitFL", "USplitSL"])
def test_a_head_that_does_not_learn_is_exported_as_it_was_built(name: str, tmp_path: Path) -> None:
    """The checkpoints have tails only."""
    fitted = fit(tmp_path, **TRAINED, strategy=name, learns="tail", seed=3)
    folder, client = tmp_path / "model", fitted.clients[0]
    options = [] if fitted.config.averages else ["--client", "0"]
    result = export(fitted, folder, *options)
    assert result.exit_code == 0, result.output
    if fitted.config.averages:
        client.ends.load(to_tensors(fitted.result.arrays))
    assert torch.equal(exported(fitted, folder), logits_of(fitted, client))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **TRAINED)
    file = fitted.run.path / "config.json"
    for depth in (2, 4):
        file.write_text(json.dumps({**fitted.run.config, "depth": depth, "tail-layers": 0}))
        refused = export(fitted, tmp_path / "model")
        assert refused.exit_code == 1
        assert "does not fit config.json (model, depth, " in refused.output.replace("\n", " ")


def test_the_card_says_what_an_epsilon_covers(tmp_path: Path) -> None:
    fitted = fit(tmp_path, **TRAINED, strategy="DPForwardSL")
    assert export(fitted, tmp_path / "model", "--client", "0").exit_code == 0
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    epsilon = fitted.rows[-1]["train_epsilon"]
    assert f"Epsilon: {epsilon_text(epsilon)} at delta 1e-05" in card
    assert "a client's messages about one record" in card
