"""Saved sets of the `datasets` library, for tests."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image

NAMES = ["cat", "dog"]
CLASS_LABEL = datasets.ClassLabel(names=NAMES)


def split(
    values: list[int],
    labels: list[Any],
    *,
    image: str = "image",
    label: str = "label",
    label_type: Any = CLASS_LABEL,
) -> Any:
    pictures = [Image.new("L", (6, 6), value) for value in values]
    return datasets.Dataset.from_dict(
        {"id": list(range(len(values))), image: pictures, label: labels},
        features=datasets.Features(
            {"id": datasets.Value("int64"), image: datasets.Image(), label: label_type}
        ),
    )


def save(folder: Path, **splits: Any) -> str:
    datasets.DatasetDict(splits).save_to_disk(str(folder / "saved"))
    return str(folder / "saved")


def grey_levels(dataset: Any) -> list[int]:
    images, _ = dataset.batch(np.arange(len(dataset)))
    centre = images.shape[-1] // 2
    return [round(255 * (value * 0.5 + 0.5)) for value in images[:, 0, centre, centre].tolist()]


def picture_bytes(value: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (6, 6), value).save(content, "PNG")
    return content.getvalue()
