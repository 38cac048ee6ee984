"""Every strategy and every family of models can be had by a run configuration, and trains."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.vision.data import client_images, images_of
from flwr_splitmix.apps.vision.model import segments_of, split_of
from flwr_splitmix.apps.vision.server import make_strategy
from flwr_splitmix.data.examples import fetch
from flwr_splitmix.segments.vision.tokens import Positions
from flwr_splitmix.segments.vision.tokens_to_token import TokensToToken
from flwr_splitmix.strategies import STRATEGIES
from tests.apps.vision_fit import CLIENTS, fit, needed, read

NO_KEYS = {"labels", "grid", "noise"}
"""Arguments that the app derives: labels, the cells of images from the patches, noise."""

OTHER_THAN_DEFAULT: dict[str, Any] = {
    "k": 2,
    "alpha": 3.0,
    "rounding": "largest-remainder",
    "min_patches": 1,
    "gradient": "broadcast",
    "regroup": "epoch",
    "leftover": "skip",
    "k_times": True,
    "mask_per_sample": True,
    "fixed_positions": True,
    "beta": 2.0,
    "ratio": 0.25,
    "across": "batch",
    "kappa": 0.75,
    "spectrum": "pixels",
}


def own(name: str) -> set[str]:
    """Return the options that a strategy's constructor names and a key must have."""
    parameters = inspect.signature(STRATEGIES[name]).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - NO_KEYS


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    """Join the tensors of a module's state; it may have none."""
    return torch.cat([torch.zeros(0), *(tensor.flatten() for tensor in tensors.values())])


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_takes_a_step_with_every_client(name: str, tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy=name, **needed(name))
    assert type(fitted.strategy) is STRATEGIES[name]
    assert fitted.row["steps"] == 1
    assert math.isfinite(fitted.row["loss"])
    upper = fitted.strategy.upper.module.state_dict()
    assert not torch.equal(flat(upper), flat(fitted.segments.upper.state_dict()))

    initial = flat(fitted.segments.lower.state_dict())
    learned = [flat(client.segment.state_dict()) for client in fitted.clients]
    frozen = hasattr(fitted.strategy, "edge")
    assert all(torch.equal(weights, initial) == frozen for weights in learned)
    # The clients have equally many images: FedAvg is the mean.
    expected = torch.stack(learned).mean(dim=0) if name.endswith("SFL") else initial
    assert torch.allclose(flat(fitted.lower), expected, atol=1e-7)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_option_of_every_strategy_is_a_key(name: str) -> None:
    assert own(name) <= OTHER_THAN_DEFAULT.keys(), "an option that no key sets"
    config = read(strategy=name, **OTHER_THAN_DEFAULT, **needed(name))
    assert config.own_options() == {key: OTHER_THAN_DEFAULT[key] for key in own(name)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_keys_defaults_are_the_strategys(name: str) -> None:
    parameters = inspect.signature(STRATEGIES[name]).parameters
    defaults = read(strategy=name, **needed(name)).own_options()
    assert defaults == {key: parameters[key].default for key in own(name)}


def test_infinity_and_zero_stand_for_none() -> None:
    assert read(strategy="MixupSL", alpha=math.inf).own_options()["alpha"] is None
    assert read(strategy="CutoutSL", ratio=0.0).own_options()["ratio"] is None


def test_options_reach_the_mixer() -> None:
    config = read(strategy="CutoutSL", ratio=0.25, alpha=3.0, mask_per_sample=True, depth=1)
    strategy = make_strategy(config, segments_of(config).upper, None)
    mixer: Any = strategy.mixer
    assert (mixer.ratio, mixer.alpha, mixer.mask_per_sample) == (0.25, 3.0, True)


def test_a_frozen_edge_has_the_configured_embedding(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"strategy": "BatchShuffleSL", "embedding": "tokens-to-token"}
    fitted = fit(tmp_path, **keys)
    assert any(isinstance(part, TokensToToken) for part in fitted.segments.lower.modules())
    assert fitted.row["steps"] == 1
    _, arguments = split_of(read(**keys, depth=2), 10, 1)
    assert arguments["embedding"] == "tokens-to-token"  # also of an exported model
    assert "embedding" not in split_of(read(strategy="BatchShuffleSL", depth=2), 10, 1)[1]


@pytest.mark.parametrize("name", ["ShuffledPSL", "ShuffledCutMixSFL"])
@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "pit_ti_224"])
def test_shuffled_forms_have_their_positions_in_the_upper_segment(name: str, model: str) -> None:
    shuffled = segments_of(read(strategy=name, model=model, depth=1))
    plain = segments_of(read(strategy="PSL", model=model, depth=1))
    assert any(isinstance(part, Positions) for part in shuffled.upper)
    assert not any(isinstance(part, Positions) for part in plain.upper)
    assert shuffled.lower.geometry.positions == "upper"


def test_shuffled_forms_refuse_a_cut_behind_layers_that_know_the_slots() -> None:
    """Such as a Swin, of whose patches each tells its slot."""
    swin = {"model": "swin_tiny_patch4_window7_224"}
    message = (
        r"ShuffledCutMixSL needs the cut at 'stem' \(cut-at='stem'\): .* a ViT, cut at its embe"
    )
    with pytest.raises(ConfigError, match=message):
        segments_of(read(strategy="ShuffledCutMixSL", **swin))
    allowed = segments_of(read(strategy="ShuffledCutMixSL", cut_at="stem", **swin))
    assert allowed.lower.geometry.positions == "none"


@pytest.mark.parametrize(
    ("values", "patches", "width"),
    [
        ({"model": "deit_tiny_patch16_224"}, 16, 192),
        ({"model": "deit_tiny_distilled_patch16_224", "patch_size": 4}, 64, 192),
        ({"model": "pit_ti_224"}, 16, 64),
        # CutMixSL, section 4: behind two convolutions and one pooling, 64 x 16 x 16.
        ({"model": "vgg16"}, 64, 64 * 4),
        ({"model": "vgg16", "cell": 1}, 256, 64),
        ({"model": "vgg16", "cut_at": "features.4"}, 64, 64 * 4),
        ({"model": "lenet5"}, 25, 16 * 4),
        ({"model": "lenet5", "cut_at": "conv1", "cell": 7}, 16, 6 * 49),
        ({"model": "resnet18"}, 16, 64 * 4),
        ({"model": "resnet18", "cut_at": "layer2", "cell": 1}, 16, 128),
    ],
    ids=str,
)
def test_every_family_of_models_trains(
    values: dict[str, Any], patches: int, width: int, tmp_path: Path
) -> None:
    fitted = fit(tmp_path, strategy="CutMixSL", **values)
    # Two clients together send as much as one of PSL's; the third is left over, sends everything.
    batch, smashed, label = 4, 4 * patches * width, 8
    assert fitted.row["uplink_bytes_psl"] == CLIENTS * batch * (smashed + label)
    assert fitted.row["uplink_bytes"] == batch * (2 * smashed + CLIENTS * label)
    assert [client.steps for client in fitted.clients] == [1] * CLIENTS


def test_images_are_mixed_in_as_many_squares_as_there_are_patches(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="InputCutMixSL", model="lenet5", cell=5)
    assert fitted.clients[0].segment.geometry.grid == (2, 2)  # type: ignore[union-attr]
    assert [client.steps for client in fitted.clients] == [1] * CLIENTS


def test_depth_0_is_the_models_own() -> None:
    upper = segments_of(read(depth=0)).upper
    assert sum(name.startswith("block_") for name, _ in upper.named_children()) == 12


def test_pretrained_weights_are_asked_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    real, pretrained_flags = timm.create_model, []

    def create_model(name: str, *, pretrained: bool = False, **options: Any) -> Any:
        pretrained_flags.append(pretrained)
        return real(name, **options)

    monkeypatch.setattr(timm, "create_model", create_model)
    for strategy in ("CutMixSL", "PatchShuffleSL"):
        segments_of(read(strategy=strategy, depth=0, pretrained=True, seed=71))
        segments_of(read(strategy=strategy, depth=0, pretrained=False, seed=71))
    assert pretrained_flags == [True, False, True, False]


def test_weights_that_cannot_be_had_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    def create_model(name: str, **options: Any) -> Any:
        raise RuntimeError("these do not fit:\n\tsize mismatch for pos_embed")

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(ValueError, match="pretrained weights of vit_tiny") as caught:
        segments_of(read(depth=0, pretrained=True, seed=72))
    assert str(caught.value).endswith(
        "could not be loaded: these do not fit: size mismatch for pos_embed"
    )


def test_a_dirichlet_partition_of_0_1_leaves_each_client_few_classes(tmp_path: Path) -> None:
    config = read(partition="dirichlet", partition_alpha=0.1)
    labels = [client_images(config, i, 10)[0].labels for i in range(10)]
    assert sorted(np.concatenate(labels)) == sorted(images_of(config).train.labels)
    # Evenly divided, every class would be a tenth of each part.
    shares = [
        np.bincount(client_labels, minlength=10).max() / len(client_labels)
        for client_labels in labels
    ]
    assert min(len(client_labels) for client_labels in labels) > 0
    assert np.median(shares) > 0.35

    fitted = fit(tmp_path, partition="dirichlet", partition_alpha=0.1)
    assert [client.steps for client in fitted.clients] == [1] * CLIENTS


def test_the_servers_labels_are_those_of_the_ids_that_clients_send(tmp_path: Path) -> None:
    fitted = fit(tmp_path, strategy="PatchShuffleSL", partition="dirichlet", seed=5)
    assert fitted.strategy.labels is not None
    for table, client in zip(fitted.strategy.labels, fitted.clients, strict=True):
        ids = client.batches.indices
        assert torch.equal(table[ids], fetch(client.batches.data, ids)[1])
