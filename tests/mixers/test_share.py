"""A client's upload by its share, and values that make no share."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from flwr_splitmix.mixers import SHARES, FullShare, PatchShare, share_from_wire

PATCHES = PatchShare(lam=0.5, patches=8, prefix=1, seed=5, start=2, stop=6)
WIRE = PATCHES.to_wire()


def test_a_share_travels_as_plain_values() -> None:
    assert all(type(value) in (bool, int, float, str) for value in WIRE.values())
    assert share_from_wire(WIRE, SHARES) == PATCHES
    assert share_from_wire(FullShare().to_wire(), SHARES) == FullShare()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"share": "pickle"}, "unknown share 'pickle'; this client knows box, full, ids, "),
        ({"share": None}, "unknown share None"),
        ({"share": ["patches"]}, "unknown share"),
        ({"command": "rm"}, "unexpected keyword argument 'command'"),
        ({"seed": "5"}, "seed of share 'patches' must be int"),
        ({"seed": 5.0}, "seed of share 'patches' must be int"),
        ({"start": True}, "start of share 'patches' must be int"),
        ({"lam": True}, "lam of share 'patches' must be float"),
        ({"lam": "0.5"}, "lam of share 'patches' must be float"),
        ({"learns": 1}, "learns of share 'patches' must be bool"),
        ({"patches": None}, "patches of share 'patches' must be int"),
        ({"start": [2]}, "start of share 'patches' must be int"),
        ({"start": -1}, "slice -1:6 is not within 8 patches"),
        ({"stop": 9}, "slice 2:9 is not within 8 patches"),
        ({"start": 7}, "slice 7:6 is not within 8 patches"),
        ({"stop": 10**30}, "is not within 8 patches"),
        ({"lam": float("nan")}, "lam is nan; a mixing ratio lies in 0..1"),
        ({"lam": -0.1}, "lam is -0.1"),
        ({"lam": 10**400}, "a mixing ratio lies in 0..1"),
        ({"prefix": -1, "patches": 10}, "prefix is -1; it must be at least 0"),
        ({"first": 10**12, "per_sample": True}, "first of share 'patches' must not be sent"),
    ],
)
def test_hostile_values_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        share_from_wire({**WIRE, **changes}, SHARES)


@pytest.mark.parametrize("missing", ["seed", "start", "stop", "patches"])
def test_a_missing_value_is_refused(missing: str) -> None:
    values = {key: value for key, value in WIRE.items() if key != missing}
    with pytest.raises(ValueError, match=missing):
        share_from_wire(values, SHARES)


def test_only_known_kinds_are_made() -> None:
    with pytest.raises(ValueError, match=r"this client knows full \(hand others to SplitClient"):
        share_from_wire(WIRE, [FullShare])


@pytest.mark.parametrize(("prefix", "patches"), [(1, 10**12), (0, 10**12), (1, 8), (9, 0), (2, 7)])
def test_a_share_for_other_smashed_data_touches_nothing(prefix: int, patches: int) -> None:
    """A server that asks for a permutation of 10**12 patches must not cost the client's memory."""
    share = share_from_wire(
        {**WIRE, "prefix": prefix, "patches": patches, "start": 0, "stop": 0}, SHARES
    )
    with pytest.raises(ValueError, match=r"tokens, the smashed data have 8"):
        share.upload(torch.zeros(2, 8, 3))


def test_a_huge_seed_is_a_seed() -> None:
    share = share_from_wire({**WIRE, "seed": 10**30}, SHARES)
    upload, _ = share.upload(torch.ones(2, 9, 3))
    assert tuple(upload.shape) == (2, 5, 3)


def test_shares_of_other_modules_may_have_real_annotations() -> None:
    """Without `from __future__ import annotations` a field's type is a class, not text."""
    fields: list[Any] = [("every", int), ("way", str, dataclasses.field(default="up"))]
    kind = dataclasses.make_dataclass(
        "EveryShare", fields, bases=(FullShare,), frozen=True, kw_only=True
    )
    kind.name = "every"  # type: ignore[attr-defined]
    share = share_from_wire({"share": "every", "every": 2}, [kind])
    assert share.every == 2  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="every of share 'every' must be int"):
        share_from_wire({"share": "every", "every": "2"}, [kind])


def test_the_upload_is_the_kept_patches_and_the_scaled_prefix() -> None:
    smashed = torch.randn(3, 9, 4, dtype=torch.float64)
    upload, anchor = PATCHES.upload(smashed)
    positions = PATCHES.positions(3)
    assert len(positions) == PATCHES.count() == 4
    assert torch.equal(upload[:, 1:], smashed[:, 1 + positions])
    assert torch.equal(upload[:, :1], 0.5 * smashed[:, :1])
    assert anchor is upload


def test_broadcast_uploads_the_same_and_anchors_at_the_smashed_data() -> None:
    smashed = torch.randn(3, 9, 4)
    whole = dataclasses.replace(PATCHES, broadcast=True)
    upload, anchor = whole.upload(smashed)
    assert torch.equal(upload, PATCHES.upload(smashed)[0])
    assert anchor is smashed
    gradient = torch.randn(3, 9, 4)
    assert torch.equal(whole.pick(gradient), gradient)


@pytest.mark.parametrize("per_sample", [False, True])
def test_pick_is_the_gradient_of_place(per_sample: bool) -> None:
    share = dataclasses.replace(PATCHES, per_sample=per_sample)
    upload = torch.randn(share.upload_shape((3, 9, 4)), dtype=torch.float64, requires_grad=True)
    mixed = torch.zeros(3, 9, 4, dtype=torch.float64)
    share.place(mixed, upload)
    gradient = torch.randn_like(mixed)
    (expected,) = torch.autograd.grad((mixed * gradient).sum(), upload)
    assert torch.equal(share.pick(gradient), expected)


def test_a_part_keeps_its_patches_whatever_else_is_changed() -> None:
    whole = dataclasses.replace(PATCHES, per_sample=True)
    part = whole.part(1).part(2)
    assert part == whole.part(3)
    assert part != whole
    patches = whole.kept_patches(5)[3:]
    assert torch.equal(dataclasses.replace(part, broadcast=True).kept_patches(2), patches)
    with pytest.raises(ValueError, match="first of share 'patches' is 3 and cannot be sent"):
        part.to_wire()
    assert whole.part(0).to_wire().keys() == WIRE.keys()
    with pytest.raises(ValueError, match="first is -1; it must be at least 0"):
        part.part(-4)


def test_an_empty_share_uploads_the_prefix_only() -> None:
    share = dataclasses.replace(PATCHES, stop=2, lam=0.0)
    upload, _ = share.upload(torch.randn(3, 9, 4))
    assert tuple(upload.shape) == share.upload_shape((3, 9, 4)) == (3, 1, 4)
    assert not upload.any()
