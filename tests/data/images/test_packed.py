"""ImageDataset: values, shapes, subsets and rejected input."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.data import ImageDataset


def make(n: int = 20, channels: int = 1, size: int = 28, **options: Any) -> ImageDataset:
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (n, channels, size, size)).astype(np.uint8)
    return ImageDataset(images, np.arange(n) % 5, num_classes=5, **options)


def test_pixels_are_scaled_normalised_and_padded_with_black_around_the_centre() -> None:
    images = np.full((1, 1, 2, 2), 255, np.uint8)
    dataset = ImageDataset(
        images, np.array([0]), num_classes=1, image_size=5, mean=0.286, std=0.353
    )
    image, _ = dataset[0]
    white, black = (1 - 0.286) / 0.353, -0.286 / 0.353
    expected = torch.full((1, 5, 5), black)
    expected[:, 1:3, 1:3] = white
    torch.testing.assert_close(image, expected)


def test_oblong_images_are_padded_on_each_axis_by_itself() -> None:
    dataset = ImageDataset(
        np.full((1, 1, 2, 4), 255, np.uint8),
        np.array([0]),
        num_classes=1,
        image_size=4,
        mean=0.0,
        std=1.0,
    )
    rows = dataset[0][0][0].sum(1)
    assert rows.tolist() == [0, 4, 4, 0]


def test_mean_and_std_apply_per_channel() -> None:
    images = np.zeros((1, 3, 1, 1), np.uint8)
    dataset = ImageDataset(
        images, np.array([0]), num_classes=1, image_size=1, mean=(0.1, 0.2, 0.3), std=(1, 2, 3)
    )
    torch.testing.assert_close(dataset[0][0].flatten(), torch.tensor([-0.1, -0.1, -0.1]))


def test_a_batch_equals_the_stacked_samples() -> None:
    dataset = make(channels=3).subset(np.array([4, 9, 2, 17, 4]))
    order = np.array([3, 0, 4, 1, -1])
    images, labels = dataset.batch(order)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    torch.testing.assert_close(images, torch.stack([dataset[int(i)][0] for i in order]))
    assert labels.tolist() == [int(dataset[int(i)][1]) for i in order] == [2, 4, 4, 4, 4]
    assert dataset[0][1].shape == ()


def test_a_batch_belongs_to_the_caller() -> None:
    dataset = make()
    images, labels = dataset.batch(np.arange(3))
    before = images.clone()
    images.zero_()
    labels.zero_()
    torch.testing.assert_close(dataset.batch(np.arange(3))[0], before)
    assert dataset.labels[:3].tolist() == [0, 1, 2]


def test_subsets_of_subsets_share_memory_and_count_from_their_own_start() -> None:
    whole = make(image_size=40, mean=0.2, std=0.4)
    part = whole.subset(np.array([10, 11, 12, 13])).subset(np.array([3, -4]))
    assert np.shares_memory(part._images, whole._images)
    assert part.shape == whole.shape == (1, 40, 40)
    assert part.labels.tolist() == [3, 0]
    torch.testing.assert_close(part.batch(np.arange(2))[0], whole.batch(np.array([13, 10]))[0])


def test_shared_arrays_cannot_be_written_through_the_dataset() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make().labels[0] = 1


def test_an_empty_dataset_has_length_0_and_gives_empty_batches() -> None:
    for dataset in (make(0), make().subset(np.array([], np.int64))):
        assert len(dataset) == 0
        assert list(dataset) == []  # type: ignore[call-overload]
        images, labels = dataset.batch(np.array([], np.int64))
        assert images.shape == (0, 1, 32, 32)
        assert labels.shape == (0,)


def test_it_works_in_a_data_loader_and_survives_pickling() -> None:
    dataset = pickle.loads(pickle.dumps(make().subset(np.arange(5, 12))))
    loader = torch.utils.data.DataLoader(dataset, batch_size=4)
    batches = [labels.tolist() for _, labels in loader]
    assert batches == [[0, 1, 2, 3], [4, 0, 1]]


@pytest.mark.parametrize("index", [20, -21])
def test_an_index_outside_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} lies outside a dataset of 20 images"):
        make()[index]


def test_a_mask_is_not_taken_for_indices() -> None:
    with pytest.raises(ValueError, match="indices are bool"):
        make().subset(np.ones(20, bool))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": 27}, "images are 28 x 28 pixels but image_size is 27"),
        ({"num_classes": 4}, r"a label is 4; labels must lie in 0\.\.3"),
        ({"labels": np.array([0, -1])}, r"a label is -1; labels must lie in 0\.\.4"),
        ({"labels": np.array([0, 1, 2])}, r"they must be integers of shape \(2,\)"),
        ({"labels": np.array([0.0, 1.0])}, "labels are float64"),
        ({"images": np.zeros((2, 1, 28, 28), np.float32)}, "images are float32"),
        ({"images": np.zeros((2, 28, 28), np.uint8)}, "must be uint8 of shape"),
        (
            {"images": torch.zeros(2, 1, 28, 28, dtype=torch.uint8)},
            r"images are a tensor \(2, 1, 28, 28\); expected a NumPy array, .* images.numpy\(\)",
        ),
        ({"labels": torch.tensor([0, 1])}, r"labels are a tensor \(2,\); expected a NumPy array"),
        ({"num_classes": 0}, "num_classes is 0"),
        ({"std": 0.0}, "must be greater than 0"),
        ({"mean": (0.1, 0.2)}, "one finite number or 1, one per channel"),
        ({"mean": float("nan")}, "mean is nan"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "images": np.zeros((2, 1, 28, 28), np.uint8),
        "labels": np.array([0, 4]),
        "num_classes": 5,
    }
    with pytest.raises(ValueError, match=message):
        ImageDataset(**{**good, **change})
