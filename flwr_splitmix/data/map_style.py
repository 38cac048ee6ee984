"""Whether data can be read by index: asked before anything is trained on them."""

from __future__ import annotations

from typing import Any

from flwr_splitmix.data.batches import _is_map_style, _pair


def check_map_style(name: str, data: Any) -> None:
    """Refuse an argument that is no map-style data set.

    Raises
    ------
    TypeError
        If it has no length or cannot be indexed, or if it is a tuple or list of whole arrays
        instead of (input, label) pairs; the message begins with the argument's name.
    """
    if not _is_map_style(data):
        kind = type(data).__name__
        inside = f": give its data set, {name}=loader.dataset" if kind == "DataLoader" else ""
        raise TypeError(
            f"{name} is {kind}; needed is a map-style data set with a length (__len__ and "
            f"__getitem__){inside}"
        )
    if isinstance(data, (tuple, list)) and data:
        try:
            _pair(data[0])
        except TypeError as error:
            raise TypeError(
                f"{name}: {error}; of arrays of inputs and labels make "
                "torch.utils.data.TensorDataset(inputs, labels)"
            ) from error
