"""The programs of README.md and docs/ do what these pages say.

tests/laws runs the laws over the example's mixer too.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from copy import deepcopy
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import Order, SplitClient
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import SmashedShape
from flwr_splitmix.runs import Run
from flwr_splitmix.sandbox.certificates import make_certificates
from flwr_splitmix.segments import split_vision_model
from flwr_splitmix.strategies import (
    PSL,
    SFL,
    CutMixSFL,
    CutMixSL,
    PatchShuffleSL,
    SplitStrategy,
    USplitSL,
)
from flwr_splitmix.testing import laws
from tests.examples.programs import ROOT, program, readme_files

MIXER = ROOT / "examples" / "block_cutmix.py"
APP = ROOT / "examples" / "other_project"
FIRST = Order(client=0, seed=0, server_round=1, num_rounds=1)
APP_FILES = ("pyproject.toml", "client_app.py", "server_app.py")


@pytest.fixture(scope="module")
def blocks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("block_cutmix", MIXER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("clients", [2, 3, 5, 8])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("patches", [1, 2, 16, 64])
@pytest.mark.parametrize("alpha", [0.05, 6.0, None])
@pytest.mark.parametrize("prefix", [0, 1])
def test_blocks_partition_the_patches(
    blocks: ModuleType, clients: int, k: int, patches: int, alpha: float | None, prefix: int
) -> None:
    laws.check_masks_partition(
        blocks.BlockCutMix(k, alpha), clients=clients, patches=patches, prefix=prefix, seed=patches
    )


def test_a_block_is_one_run_that_wraps_around(blocks: ModuleType) -> None:
    plan = blocks.BlockCutMix(2).plan(range(6), SmashedShape(4, 16, 8), np.random.default_rng(1))
    for client in range(6):
        (share,) = plan.shares(client)
        mask = torch.zeros(16, dtype=torch.bool)
        mask[share.positions(4)] = True
        borders = int((mask != mask.roll(1)).sum())
        assert borders == (0 if share.count() in (0, 16) else 2)


def test_a_client_takes_no_share_that_it_was_not_given(blocks: ModuleType) -> None:
    toy = laws.Toy()
    strategy = SplitStrategy(toy.upper(), mixer=blocks.BlockCutMix(), device="cpu")
    with pytest.raises(RuntimeError, match=r"unknown share 'block'.*SplitClient\(shares="):
        strategy.fit(toy.make_clients(), 1)


def test_the_documented_strategy_counts_on_in_a_resumed_run(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(program("docs/own-app.md", "class LongerRounds"), names)
    toy = laws.Toy()
    run = Run.create({}, name="longer", home=tmp_path)
    for rounds in (3, 5):
        strategy = names["LongerRounds"](toy.upper(), k=2, run=run, device="cpu")
        strategy.fit(toy.make_clients(), rounds)
        run = Run.open(run.id, home=tmp_path)
    assert [row["steps"] for row in run.rows] == [2, 2, 4, 4, 4]
    assert strategy.taken == 16


def test_the_readme_prints_the_files_of_the_example() -> None:
    assert readme_files() == {name: (APP / name).read_text(encoding="utf-8") for name in APP_FILES}


def test_a_hiding_of_ones_own_keeps_to_the_law() -> None:
    names: dict[str, object] = {}
    exec(program("docs/language.md", "class Noisy(Hiding)"), names)
    kind = names["Noisy"]
    assert isinstance(kind, type)
    assert issubclass(kind, Hiding)


def test_the_lines_on_hiding_reach_the_epsilon_that_they_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    toy = laws.TextToy()
    names: dict[str, Any] = {"head": toy.head(), "tail": toy.tail(), "trunk": toy.server()}
    exec(program("docs/language.md", "DPForwardSL(trunk)"), names)
    assert float(capsys.readouterr().out) == pytest.approx(8.0, rel=1e-6)


def test_the_weights_of_a_run_are_loaded_into_ones_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPLITMIX_HOME", str(tmp_path))
    toy = laws.Toy()
    strategy = SFL(toy.upper(), device="cpu", run=Run.create({}, name="mine"), steps_per_round=1)
    result = strategy.fit(toy.make_clients(), 1)
    names: dict[str, Any] = {"Run": Run, "lower": toy.lower(), "upper": toy.upper()}
    exec(program("docs/own-app.md", 'under("lower"'), names)
    for name, weight in strategy.upper.module.state_dict().items():
        assert torch.equal(names["upper"].state_dict()[name], weight)
    for name, weight in names["lower"].state_dict().items():
        assert np.array_equal(result.arrays[name].numpy(), weight.numpy())


def test_the_weights_of_one_client_are_loaded_where_none_are_averaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines on averaged ones would load the untrained segment that all clients begin with."""
    monkeypatch.setenv("SPLITMIX_HOME", str(tmp_path))
    toy = laws.Toy()
    strategy = PSL(toy.upper(), device="cpu", run=Run.create({}, name="mine"), steps_per_round=1)
    clients = toy.make_clients()
    strategy.fit(clients, 1)
    names: dict[str, Any] = {"Run": Run, "lower": toy.lower(), "upper": toy.upper()}
    with pytest.raises(RuntimeError, match="Missing key"):
        exec(program("docs/own-app.md", 'under("lower"'), names)
    exec(program("docs/own-app.md", "ClientStore"), names)
    for name, weight in clients[0].segment.state_dict().items():
        assert torch.equal(names["lower"].state_dict()[name], weight)


def test_a_resumed_run_of_an_own_app_has_the_configuration_it_began_with(tmp_path: Path) -> None:
    opening, _, _ = program("docs/own-app.md", "Run.open(str").partition("strategy =")

    def begun(**options: Any) -> dict[str, Any]:
        config = {"run-dir": str(tmp_path), "resume": "", **options}
        names: dict[str, Any] = {"context": SimpleNamespace(run_config=config)}
        exec(opening, names)
        return names

    first, resumed = begun(lr=0.01), begun(lr=0.5, resume="latest")
    assert resumed["run"].id == first["run"].id
    assert resumed["config"]["lr"] == 0.01


def rows_of_images(channels: int) -> Any:
    images = torch.rand(4, channels, 32, 32, generator=torch.Generator().manual_seed(0))
    return [(image, label) for label, image in enumerate(images)]


def test_the_two_halves_of_torchvisions_resnet_are_the_whole() -> None:
    names: dict[str, Any] = {"nn": torch.nn}
    exec(program("docs/own-app.md", "import torchvision"), names)
    lower, upper = names["Lower"](), names["Upper"]()
    whole, images = deepcopy(names["resnet"]).eval(), torch.rand(2, 3, 32, 32)
    assert torch.equal(upper.eval()(lower.eval()(images)), whole(images))
    SplitClient(lower, rows_of_images(3), device="cpu").attach(FIRST, None)


def test_the_class_token_of_a_vit_of_transformers_is_no_patch() -> None:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=32, patch_size=8,
    )  # fmt: skip
    names: dict[str, Any] = {"nn": torch.nn}
    exec(program("docs/own-app.md", "LowerOfViT"), names)
    lower = names["LowerOfViT"](ViTForImageClassification(config))
    client = SplitClient(lower, rows_of_images(3), batch_size=4, device="cpu")
    described = client.attach(FIRST, None)
    assert [described[key] for key in ("prefix", "patches", "width")] == [1, 16, 8]
    assert tuple(lower(torch.rand(2, 3, 32, 32)).shape) == lower.geometry.shape(2)


def test_images_are_learned_in_the_u_shape() -> None:
    names: dict[str, Any] = {}
    text = program("docs/own-app.md", "split_vision_parts")
    assert text.count("5)") == 2
    exec(text.replace("5)", "1)"), names)
    assert names["strategy"].rows[-1]["accuracy"] > 0.25


def test_an_edge_of_ones_own_shuffles_as_the_strategy_asks() -> None:
    names: dict[str, Any] = {"nn": torch.nn}
    exec(program("docs/own-app.md", "class Edge"), names)
    inner = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 8, 8), torch.nn.Flatten(2))
    client = SplitClient(names["Edge"](inner), rows_of_images(1), batch_size=4, device="cpu")
    upper = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8 * 16, 4))
    labels = [torch.arange(4)]
    strategy = PatchShuffleSL(upper, labels=labels, num_classes=4, device="cpu", steps_per_round=1)
    strategy.fit([client], 1)
    (row,) = strategy.rows
    assert np.isfinite(row["loss"])
    plain = SplitClient(inner, rows_of_images(1), batch_size=4, device="cpu")
    with pytest.raises(LinkError, match=r"its edge is None, not .*; split_shuffled_edge makes"):
        strategy.fit([plain], 1)


def test_an_observer_of_ones_own_counts_what_the_metrics_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {}
    exec(program("docs/own-app.md", "BytesByClient"), names)
    toy, observer = laws.Toy(), names["BytesByClient"]()
    strategy = SplitStrategy(toy.upper(), device="cpu", observers=[observer])
    strategy.fit(toy.make_clients(), 1)
    (row,) = strategy.rows
    assert observer.total.total() == row["uplink_bytes"] + row["downlink_bytes"]
    assert capsys.readouterr().out.startswith("round 1: ")


class Masked(nn.Module):
    """A part of the U shape that ignores its mask."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


def test_the_lines_on_other_labels_train_and_score_them() -> None:
    inputs = torch.randn(40, 3, 5)
    data = TensorDataset(inputs, (inputs[:, :, 0] > 0).long())
    trunk, tail = nn.Linear(5, 5), nn.Sequential(nn.Flatten(), nn.Linear(15, 3))
    names: dict[str, Any] = {"head": Masked(nn.Linear(5, 5)), "tail": Masked(tail), "data": data}
    exec(program("docs/own-app.md", "MultiLabelScores"), names)
    strategy = USplitSL(Masked(trunk), device="cpu", evaluation="federated")
    strategy.fit([names["client"]], 1)
    client = names["client"]
    truth = data.tensors[1]
    with torch.no_grad():
        logits = tail(trunk(client.head(inputs, None)))
    right = float(((logits > 0) == truth.bool()).double().mean())
    assert strategy.rows[-1]["accuracy"] == pytest.approx(right)


def test_the_lines_on_mixers_fit_together(blocks: ModuleType) -> None:
    toy = laws.Toy()
    names: dict[str, Any] = {
        **vars(blocks), "FedAvg": FedAvg, "upper": toy.upper(), "lower": toy.lower(),
        "data": toy.data(0),
    }  # fmt: skip
    exec(program("docs/own-mixer.md", "SplitClient(lower"), names)
    exec(program("docs/own-mixer.md", "laws.check"), names)
    partner = SplitClient(toy.lower(), toy.data(1), shares=(names["BlockShare"],))
    names["strategy"].fit([names["client"], partner], 1)
    (row,) = names["strategy"].rows
    assert (row["clients_alive"], row["clients_failed"]) == (2, 0)


def test_the_lines_on_leaks_measure_the_example(
    blocks: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    images = load_images("fashion-mnist-small")
    lower, upper = split_vision_model(patch_size=8, depth=1, seed=0)
    clients = [
        SplitClient(
            deepcopy(lower),
            client_split(images, index, 60)[0],
            batch_size=25,
            device="cpu",
            shares=(blocks.BlockShare,),
        )
        for index in range(2)
    ]
    names = {
        **vars(blocks), "images": images, "upper": upper, "clients": clients,
        "SplitStrategy": SplitStrategy, "split_vision_model": split_vision_model,
    }  # fmt: skip
    text = program("docs/own-mixer.md", "attacked_fit(")
    exec(text.replace('"decoder"', '"linear"').replace("victims=100", "victims=20"), names)
    # Recorded steps are of other weights than the average, the patches of a step of others' images.
    assert re.search(r"MSE 0\.0\d+ floor 0\.0\d+ True", capsys.readouterr().out)
    exec(program("docs/own-mixer.md", "MeanImage").replace("victims=100", "victims=20"), names)
    (measure,) = capsys.readouterr().out.splitlines()
    match = re.search(r"metric='MSE', value=(0\.0\d+).* floor=(0\.0\d+)", measure)
    assert match
    assert float(match[1]) > float(match[2])  # the floor knows the row's class


def test_the_lines_on_a_recording_read_it(
    blocks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    toy = laws.Toy()
    shares = (blocks.BlockShare,)
    names: dict[str, Any] = {
        **vars(blocks), "SplitStrategy": SplitStrategy, "upper": toy.upper(),
        "clients": [SplitClient(toy.lower(), toy.data(i), shares=shares) for i in range(2)],
    }  # fmt: skip
    exec(program("docs/own-mixer.md", "DiskTrace"), names)
    assert capsys.readouterr().out.startswith("1 0 [0, 1]\n")


def test_the_lines_on_a_loss_give_it_to_the_upper_segment() -> None:
    names: dict[str, Any] = {
        "torch": torch, "nn": torch.nn, "CutMixSFL": CutMixSFL, "upper": laws.Toy().upper(),
    }  # fmt: skip
    exec(program("docs/own-app.md", "def weighted(logits"), names)
    loss = names["strategy"].upper.loss
    logits, classes = torch.randn(6, 3), torch.tensor([0, 0, 0, 1, 1, 2])
    losses = loss(logits, torch.nn.functional.one_hot(classes, 3).float())
    assert losses.shape == (6,)
    expected = torch.nn.CrossEntropyLoss(names["weights"])(logits, classes)
    torch.testing.assert_close(losses.mean(), expected)


def test_the_lines_on_links_make_them(tmp_path: Path) -> None:
    files = make_certificates(tmp_path, ("server.example",))
    config = {
        "link-advertise": "server.example:9443", "ssl-certfile": str(files.certificate),
        "ssl-keyfile": str(files.key), "ssl-ca-certfile": str(files.ca),
    }  # fmt: skip
    names: dict[str, Any] = {
        "context": SimpleNamespace(run_config=config), "CutMixSFL": CutMixSFL,
        "CutMixSL": CutMixSL, "upper": laws.Toy().upper(),
    }  # fmt: skip
    exec(program("docs/own-app.md", "import StreamLink"), names)
    assert names["strategy"].link is names["link"]
    token = tmp_path / "mixer.token"
    token.write_text("a" * 43)
    token.chmod(0o600)
    text = program("docs/own-app.md", "import MixerLink")
    for page, file in (
        ("/mixer.token", token), ("/mixer-ca.crt", files.ca),
        ("/run.crt", files.certificate), ("/run.key", files.key),
    ):  # fmt: skip
        text = text.replace(f"/etc/splitmix{page}", str(file))
    assert "/etc/" not in text
    exec(text, names)
    assert names["strategy"].link is names["link"]


def test_the_lines_on_a_mixer_fit_the_one_of_the_deployment_page() -> None:
    """That one asks for a certificate, so an app of one's own must show one."""
    text = program("docs/own-app.md", "import MixerLink")
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    (via,) = re.findall(r"```toml\n(link-via = .*?)```", page, re.DOTALL)
    keys = tomllib.loads(via)
    for key, argument in (
        ("link-via", ""), ("link-via-token", ""), ("ssl-ca-certfile", "ca="),
        ("ssl-certfile", "certificate="), ("ssl-keyfile", "key="),
    ):  # fmt: skip
        assert f'{argument}"{keys[key]}"' in text
    assert f"--token-file {keys['link-via-token']}" in page
    assert f"--link-client-ca {keys['ssl-ca-certfile']}" in page
