"""Tensors pass through Ray's object store unchanged."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.links.ray.actor import PIECE_BYTES, pack, unpack


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0), (2, 3, 4), (700, 1000)], ids=str)
def test_a_tensor_comes_out_as_it_went_in(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (100 * torch.rand(shape)).to(dtype)
    packed = pack(tensor)
    assert all(piece.nbytes <= PIECE_BYTES for piece in packed.pieces)
    unpacked = unpack(packed)
    assert unpacked.dtype == dtype
    assert torch.equal(unpacked, tensor)


def test_bools_and_views_too() -> None:
    bools = torch.tensor([[True, False], [False, False]])
    assert torch.equal(unpack(pack(bools)), bools)
    turned = torch.arange(12.0).view(3, 4).T
    assert torch.equal(unpack(pack(turned)), turned)


def test_what_comes_out_is_memory_of_its_own() -> None:
    tensor = torch.zeros(4)
    unpack(pack(tensor)).add_(1)
    assert torch.equal(tensor, torch.zeros(4))
