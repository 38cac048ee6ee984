"""Data sets of the `datasets` library, saved to disk or loaded from the hub by Flower Datasets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.data.split_names import TEST_SPLITS, no_test_split


def is_saved(folder: Path) -> bool:
    """Return whether a folder was written by `save_to_disk`: a `DatasetDict`, or a single split."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def load_saved(folder: Path, test_splits: Sequence[str] = TEST_SPLITS) -> tuple[Any, Any]:
    """Open the training and test split of a `DatasetDict` written by `save_to_disk`.

    Parameters
    ----------
    test_splits
        Possible names of the test split; the first that exists is used.

    Returns
    -------
    tuple of datasets.Dataset
        Training split, test split.

    Raises
    ------
    DataError
        If the folder cannot be opened, holds a single split, or has no training or test split.
    """
    datasets = import_extra("datasets", "reading a saved dataset")
    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:  # Arrow and datasets may raise anything for a damaged folder
        raise DataError(
            f"{folder} cannot be read as a dataset saved by save_to_disk: {_first_line(error)}"
        ) from error
    if not isinstance(saved, datasets.DatasetDict):
        raise DataError(
            f"{folder} holds a single split; save a DatasetDict with the splits train and test"
        )
    if "train" not in saved:
        raise DataError(f"{folder} has the splits {', '.join(saved)}; one named train is needed")
    test = next((saved[name] for name in test_splits if name in saved), None)
    if test is None:
        raise no_test_split(folder, test_splits)
    return saved["train"], test


def load_hub(
    name: str,
    test_splits: Sequence[str] = TEST_SPLITS,
    *,
    subset: str | None = None,
    kind: str = "an image dataset",
) -> tuple[Any, Any]:
    """Load a data set from the Hugging Face hub, or from the local cache.

    Parameters
    ----------
    test_splits
        Possible names of the test split; the first that exists is used.
    subset
        Configuration of the data set; None: its only one.
    kind
        Kind of data set, for messages.

    Returns
    -------
    tuple of datasets.Dataset
        Training split, test split, in the hub's order.

    Raises
    ------
    DataError
        If it cannot be loaded, or has no training or test split.
    """
    flwr_datasets = import_extra("flwr_datasets", "loading a dataset from the hub")
    try:
        # Not shuffled here: the partition shuffles with its own seed.
        federated = flwr_datasets.FederatedDataset(
            dataset=name, subset=subset, partitioners={}, shuffle=False
        )
        train = federated.load_split("train")
    except Exception as error:  # from an unknown name to a missing network
        raise DataError(
            f"the dataset {name!r} could not be loaded from the Hugging Face hub "
            f"({_first_line(error)}); it must be the name of {kind} there with the "
            "splits train and test, while the hub can be reached or the dataset is cached; a "
            "folder needs an absolute path, for an app does not run where you are"
        ) from error
    for split in test_splits:
        try:
            return train, federated.load_split(split)
        except ValueError:  # raised by FederatedDataset for a missing split
            continue
    raise no_test_split(name, test_splits)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
