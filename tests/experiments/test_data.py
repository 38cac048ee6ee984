"""A cell's images: the usual partition, and the same test set for all."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from flwr_splitmix.data import DataError, ImageDataset, client_split, load_images
from flwr_splitmix.experiments import EXPERIMENTS, SCALES, variant
from flwr_splitmix.experiments.cells import Partition
from flwr_splitmix.experiments.data import ResidentImages, load_cell_data

SMALL = "fashion-mnist-small"
SMOKE = SCALES["smoke"]


def batch(images: ImageDataset) -> torch.Tensor:
    return images.batch(np.arange(len(images)))[0]


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_clients_have_what_client_split_gives_them(partition: Partition) -> None:
    cell = SMOKE.cell(variant("PSL", clients=7, partition=partition), seed=3)
    data = load_cell_data(cell, SMALL)
    for index, part in enumerate(data.clients):
        expected, _ = client_split(
            load_images(SMALL), index, 7, scheme=partition, alpha=0.1, seed=3, samples=20
        )
        assert torch.equal(batch(part), batch(expected))
        assert np.array_equal(part.labels, expected.labels)


def test_a_cell_of_pretrained_weights_has_images_as_they_expect_them() -> None:
    cell = SMOKE.cell(variant("PSL", clients=2), seed=0)
    pretrained = dataclasses.replace(
        cell, model="deit_tiny_patch16_224", model_options=(("pretrained", True),)
    )
    assert load_cell_data(cell, SMALL).test.mean == (0.2860,)
    mean = load_cell_data(pretrained, SMALL).test.mean
    assert mean == pytest.approx(((0.485 + 0.456 + 0.406) / 3,))


def test_an_iid_cell_needs_no_flwr_datasets() -> None:
    script = (
        "import sys\n"
        "sys.modules['datasets'] = sys.modules['flwr_datasets'] = None\n"
        "from flwr_splitmix.experiments import SCALES, variant\n"
        "from flwr_splitmix.experiments.data import load_cell_data\n"
        "data = load_cell_data(SCALES['smoke'].cell(variant('PSL')), 'fashion-mnist-small')\n"
        "sys.exit(len(data.clients) != 10)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_the_pooled_data_are_the_clients_together() -> None:
    data = load_cell_data(SMOKE.cell(variant("Unsplit", clients=3)), SMALL)
    together = torch.cat([batch(part) for part in data.clients])
    assert torch.equal(batch(data.pooled), together)


def test_all_seeds_are_scored_on_the_same_test_images() -> None:
    tests = [load_cell_data(SMOKE.cell(variant("PSL"), seed=s), SMALL).test for s in (0, 1)]
    assert len(tests[0]) == 40
    assert torch.equal(batch(tests[0]), batch(tests[1]))
    assert len(np.unique(tests[0].labels)) > 5  # not just the images of a first class


def test_too_few_images_are_one_clear_error() -> None:
    cell = SCALES["paper"].cell(variant("PSL"))
    with pytest.raises(DataError, match=r"6000 training images.*10 clients with 5000 each"):
        load_cell_data(cell, SMALL)


def test_resident_images_are_the_images() -> None:
    images = load_images(SMALL).test
    resident = ResidentImages(images.subset(np.arange(9)), torch.device("cpu"))
    inputs, labels = resident.batch(np.array([4, 0, 8]))
    expected, classes = images.batch(np.array([4, 0, 8]))
    assert torch.equal(inputs, expected)
    assert torch.equal(labels, classes)
    assert torch.equal(resident[2][0], images[2][0])


def test_resident_images_are_kept_as_bytes() -> None:
    images = load_images(SMALL).test.subset(np.arange(9))
    attributes = vars(ResidentImages(images, torch.device("cpu")))
    bytes_kept = sum(
        v.nbytes for v in attributes.values() if isinstance(v, torch.Tensor) and v.dim() > 3
    )
    assert bytes_kept == 9 * 32 * 32


def test_faces_are_not_shrunk_before_they_are_enlarged() -> None:
    """CelebA's images are 178 x 218; Patch Shuffling's are 224 x 224 (section V-B)."""
    for name in ("patch-shuffling-table1", "patch-shuffling-table1-mcc", "patch-shuffling-table7"):
        for _, cell in EXPERIMENTS[name].cells(SCALES["paper"]):
            assert (cell.recipe.image_size, cell.recipe.resize) == (178, 224)
    for _, cell in EXPERIMENTS["patch-shuffling-table2"].cells(SCALES["paper"]):
        assert (cell.recipe.image_size, cell.recipe.resize) == (32, 224)  # as CIFAR-10's are


def test_resident_images_can_be_enlarged() -> None:
    images = load_images(SMALL).test.subset(np.arange(2))
    inputs, _ = ResidentImages(images, torch.device("cpu"), resize=64).batch(np.arange(2))
    assert inputs.shape == (2, 1, 64, 64)
    assert torch.allclose(inputs.mean(), batch(images).mean(), atol=0.02)
