"""The identity of a cell: the values that define it, and no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flwr_splitmix.experiments import SCALES, ExperimentError, variant
from flwr_splitmix.experiments.cells import Recipe, dataset_name
from flwr_splitmix.experiments.scales import ENCODER

CPU = SCALES["cpu"]


def test_the_id_of_a_cell_stays() -> None:
    """Stored runs are found by it: another id would orphan them all."""
    joint = CPU.cell(variant("PSL", server_update="sum"), source="fashion_mnist")
    assert joint.id == "psl-vit_tiny-n10-s0-cd7cffe3df84"
    text = CPU.cell(variant("USplitSL", model=ENCODER, clients=1), track="cola", source="cola")
    assert text.id == "usplitsl-all-MiniLM-L6-v2-n1-s0-7d5658de39d4"
    alone = CPU.cell(variant("Standalone"), source="fashion_mnist")
    assert alone == CPU.cell(variant("Standalone", server_update="sum"), source="fashion_mnist")


def test_cells_take_the_papers_sequential_update_and_joint_ones_as_a_variant() -> None:
    for scale in SCALES.values():
        cell = scale.cell(variant("CutMixSL"))
        assert cell.recipe.server_update == "sequential"
        joint = scale.cell(variant("CutMixSL", server_update="sum"))
        assert joint.recipe == replace(cell.recipe, server_update="sum")
        assert joint.id != cell.id
        assert "server_update" not in joint.identity["recipe"]


def test_a_config_is_plain_json_and_names_what_the_listing_shows() -> None:
    cell = CPU.cell(variant("CutMixSL", {"k": 2, "alpha": None}, clients=4), seed=3, epochs=7)
    config = json.loads(json.dumps(cell.config, allow_nan=False))
    assert config == cell.config
    assert config["strategy"] == "CutMixSL"
    assert config["options"] == {"alpha": None, "k": 2}
    assert (config["clients"], config["seed"], config["num-server-rounds"]) == (4, 3, 7)
    assert (config["cell"], config["scale"]) == (cell.id, "cpu")


def test_numbers_that_are_equal_make_equal_cells() -> None:
    whole = CPU.cell(variant("CutMixSL", {"alpha": 6, "k": 2}))
    assert whole == CPU.cell(variant("CutMixSL", {"k": 2, "alpha": 6.0}))
    assert whole.id == CPU.cell(variant("CutMixSL", {"k": 2, "alpha": 6.0})).id


def test_every_field_makes_another_cell() -> None:
    cell = CPU.cell(variant("CutMixSL", {"k": 2}))
    others = [
        replace(cell, method="CutMixSFL"),
        replace(cell, options=(("k", 3),)),
        replace(cell, model="pit_ti_224"),
        replace(cell, model_options=()),
        replace(cell, clients=8),
        replace(cell, partition="dirichlet"),
        replace(cell, dataset="cifar10"),
        replace(cell, seed=1),
        replace(cell, recipe=cell.recipe.with_epochs(3)),
        replace(cell, recipe=replace(cell.recipe, lr=2e-3)),
    ]
    assert len({other.id for other in [cell, *others]}) == len(others) + 1


def test_a_new_setting_of_recipes_changes_no_old_cell() -> None:
    recipe = CPU.recipes["mixing"]
    identity = CPU.cell(variant("PSL")).identity["recipe"]
    assert "head_lr" not in identity
    assert identity["batch_size"] == recipe.batch_size == 25
    text = CPU.recipes["cola"].texts
    cell = CPU.cell(variant("USplitSL", model=ENCODER, clients=1), track="cola")
    assert text is not None
    assert "new_tokens" not in cell.identity["recipe"]["texts"]
    longer = replace(cell.recipe, texts=replace(text, new_tokens=9))
    assert replace(cell, recipe=longer).id != cell.id


def test_epochs_can_be_chosen_and_the_points_stay_evenly_spaced() -> None:
    recipe = CPU.recipes["mixing"]
    assert (recipe.evaluate_every, recipe.epochs) == (30, 60)
    short = recipe.with_epochs(6)
    assert (short.epochs, short.evaluate_every, short.warmup_epochs) == (6, 3, 3.0)
    assert recipe.with_epochs(60) == recipe
    with pytest.raises(ExperimentError, match="epochs is 0"):
        recipe.with_epochs(0)


def test_a_data_set_is_the_same_wherever_its_folder_lies(tmp_path: Path) -> None:
    folder = tmp_path / "fashion_mnist"
    folder.mkdir()
    assert dataset_name(str(folder)) == "fashion_mnist"
    assert dataset_name(f"{folder}/") == "fashion_mnist"
    assert dataset_name("fashion_mnist") == "fashion_mnist"
    assert dataset_name("fashion-mnist-small") == "fashion-mnist-small"
    assert dataset_name("uoft-cs/cifar10") == "uoft-cs/cifar10"


def test_a_folder_named_like_a_hub_data_set_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "cifar10").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert dataset_name("data/cifar10") == "cifar10"


def test_methods_that_shuffle_patches_get_their_positions_behind_the_shuffle() -> None:
    shuffled = CPU.cell(variant("ShuffledCutMixSL"))
    assert dict(shuffled.model_options)["positions"] == "upper"
    assert "positions" not in dict(CPU.cell(variant("CutMixSL")).model_options)


def test_spectra_of_embeddings_are_no_cell_that_was_run_with_those_of_pixels() -> None:
    old = replace(CPU.cell(variant("SpectralShuffleSL"), track="shuffling"), options=())
    new = CPU.cell(variant("SpectralShuffleSL"), track="shuffling")
    pixels = CPU.cell(variant("SpectralShuffleSL", {"spectrum": "pixels"}), track="shuffling")
    assert dict(new.options) == {"spectrum": "embedding"}
    assert len({old.id, new.id, pixels.id}) == 3


def test_cells_of_mixguard_name_their_sampler_as_older_ones_had_another_default() -> None:
    mixguard = variant("MixGuard", {"k": 3}, model="MiniLM-L6", clients=1)
    new = CPU.cell(mixguard, track="cola")
    assert dict(new.options) == {"k": 3, "sampler": "skewed"}
    old = replace(new, options=mixguard.options)
    rotated = CPU.cell(replace(mixguard, options=(("sampler", "rotated"),)), track="cola")
    assert dict(rotated.options)["sampler"] == "rotated"
    assert old.id != new.id


def test_an_unknown_model_is_one_clear_error() -> None:
    with pytest.raises(ExperimentError, match=r"no model 'BERT'.*ViT-Tiny"):
        CPU.cell(variant("PSL", model="BERT"))


def test_the_cpu_recipe_is_the_one_that_was_agreed() -> None:
    """CutMixSL, section 4, with fewer images, patches and epochs."""
    assert CPU.recipes["mixing"] == Recipe(
        scale="cpu",
        samples=100,
        batch_size=25,
        epochs=60,
        warmup_epochs=5.0,
        image_size=32,
        test_images=2000,
        evaluations=2,
        checkpoints=4,
        optimizer="adamw",
        lr=1e-3,
        weight_decay=0.05,
        start_lr=1e-6,
        final_lr=1e-5,
        server_update="sequential",
    )
    assert CPU.cell(variant("PSL")).model_options == (("depth", 6), ("patch_size", 8))


def test_the_paper_recipe_is_the_papers() -> None:
    paper = SCALES["paper"]
    recipe = paper.recipes["mixing"]
    assert (recipe.samples, recipe.batch_size, recipe.epochs) == (5000, 128, 600)
    assert (recipe.evaluate_every, recipe.server_update, recipe.test_images) == (
        20,
        "sequential",
        0,
    )
    assert paper.cell(variant("PSL")).model_options == (("depth", 6), ("patch_size", 4))
