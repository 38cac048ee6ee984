"""Every kind of share crosses the wire unchanged, and hostile values make none of any kind."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from flwr_splitmix.mixers import (
    SHARES,
    BoxShare,
    FullShare,
    IdShare,
    InputShare,
    NoisyShare,
    PatchShare,
    Share,
    WeightedShare,
    share_from_wire,
)
from flwr_splitmix.privacy import GaussianNoise

PATCHES = PatchShare(lam=0.5, learns=False, patches=8, prefix=1, seed=5, start=2, stop=6)
BOX = BoxShare(
    lam=0.25, patches=8, columns=4, top=0, bottom=1, left=1, right=3, inside=True, broadcast=True
)
INPUT = InputShare(
    rows=2, columns=4, classes=3, seed=9, parts=((0, WeightedShare(lam=0.5)), (3, BOX))
)
EXAMPLES: dict[str, Share] = {
    share.name: share
    for share in (
        FullShare(learns=False),
        PATCHES,
        WeightedShare(lam=0.3),
        BOX,
        INPUT,
        IdShare(),
        NoisyShare.around(PATCHES, GaussianNoise(sigma_s=1.0, sigma_y=0.5), 3),
    )
}


def wire(name: str) -> Any:
    """Return what a share is after a trip through JSON."""
    return json.loads(json.dumps(EXAMPLES[name].to_wire()))


@pytest.mark.parametrize("kind", SHARES)
def test_every_kind_crosses_the_wire_unchanged(kind: type[Share]) -> None:
    received = share_from_wire(wire(kind.name), SHARES)
    assert received == EXAMPLES[kind.name]
    assert type(received) is kind


@pytest.mark.parametrize("kind", SHARES)
def test_every_kind_announces_the_shape_of_its_upload(kind: type[Share]) -> None:
    share = EXAMPLES[kind.name]
    prefix = getattr(getattr(share, "inner", share), "prefix", 0)
    smashed = torch.randn(2, prefix + 8, 3, dtype=torch.float64)
    upload, _ = share.upload(smashed)
    assert tuple(upload.shape) == share.upload_shape((2, prefix + 8, 3))
    mixed = torch.zeros_like(smashed)
    share.place(mixed, upload)
    if share.deterministic:
        # What is placed is the smashed data, scaled or masked: 0 or lam or 1 times them.
        ratio = mixed / smashed
        factors = set(ratio.round(decimals=4).flatten().tolist())
        assert factors <= {0.0, round(share.lam, 4), 1.0}


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("full", {"lam": 2}, "lam is 2; a mixing ratio lies in 0..1"),
        ("full", {"learns": None}, "learns of share 'full' must be bool"),
        ("full", {"seed": 1}, "share 'full': .* unexpected keyword argument 'seed'"),
        ("weighted", {"lam": float("inf")}, "lam is inf"),
        ("weighted", {"lam": "1"}, "lam of share 'weighted' must be float"),
        ("weighted", {"weight": 3.0}, "unexpected keyword argument 'weight'"),
        ("ids", {"learns": 1}, "learns of share 'ids' must be bool"),
        ("ids", {"table": [1, 2]}, "unexpected keyword argument 'table'"),
        ("box", {"inside": 1}, "inside of share 'box' must be bool"),
        ("box", {"columns": "4"}, "columns of share 'box' must be int"),
        ("box", {"columns": 0}, "8 patches form no rows of 0 columns"),
        ("box", {"columns": -4}, "8 patches form no rows of -4 columns"),
        ("box", {"columns": 3}, "8 patches form no rows of 3 columns"),
        ("box", {"bottom": 3}, "box rows 0:3 are not within 2"),
        ("box", {"top": -1}, "box rows -1:1 are not within 2"),
        ("box", {"top": 2}, "box rows 2:1 are not within 2"),
        ("box", {"left": 4}, "are not within"),
        ("box", {"right": 10**30}, "box columns 1:10+ are not within 4"),
        ("box", {"patches": -8}, "are not within"),
        ("input", {"rows": 0}, "a grid of 0 x 4 cells has none"),
        ("input", {"rows": True}, "share 'input' needs the integers classes, columns, rows, seed"),
        ("input", {"rows": 2.0}, "share 'input' needs the integers"),
        ("input", {"lam": 0.5}, "share 'input' needs the integers"),
        ("input", {"classes": 10**12}, "classes is 1000000000000; it must be from"),
        ("input", {"parts": None}, r"parts of share 'input' must be a list of \(client, share\)"),
        ("input", {"parts": {}}, r"must be a list of \(client, share\)"),
        ("input", {"parts": []}, "share 'input' has no parts"),
        ("input", {"parts": [[0]]}, r"must be a list of \(client, share\)"),
        ("input", {"parts": [["0", {"share": "full"}]]}, "must be a list of"),
        ("input", {"parts": [[True, {"share": "full"}]]}, "must be a list of"),
        ("input", {"parts": [[0, "full"]]}, "a share must be a dictionary, got str"),
        ("input", {"parts": [[0, {"share": "pickle"}]]}, "unknown share 'pickle'; this client kn"),
        ("input", {"parts": [[0, {"share": "full", "lam": -1}]]}, "lam is -1"),
        ("noisy", {"inner": {"share": "pickle"}}, "unknown share 'pickle'"),
        ("noisy", {"inner": None}, "a share must be a dictionary, got NoneType"),
    ],
)
def test_hostile_values_are_refused(name: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        share_from_wire({**wire(name), **changes}, SHARES)


@pytest.mark.parametrize("kind", SHARES)
def test_a_missing_or_superfluous_value_is_refused(kind: type[Share]) -> None:
    whole = wire(kind.name)
    sentence = rf"share '{kind.name}'|unknown share None"
    optional = {"lam", "learns", "prefix", "broadcast", "per_sample"}
    for key in whole.keys() - optional:
        with pytest.raises(ValueError, match=sentence):
            share_from_wire({k: v for k, v in whole.items() if k != key}, SHARES)
    with pytest.raises(ValueError, match=sentence):
        share_from_wire({**whole, "__class__": "object"}, SHARES)


def test_a_nested_share_must_be_known_as_any_other() -> None:
    kinds = [kind for kind in SHARES if kind is not BoxShare]
    with pytest.raises(ValueError, match="unknown share 'box'; this client knows full, ids"):
        share_from_wire(wire("input"), kinds)


@pytest.mark.parametrize("patches", [10**12, 10**30])
def test_a_box_of_many_patches_touches_nothing(patches: int) -> None:
    """A server that asks for a mask of 10**12 patches must not cost the client's memory."""
    share = share_from_wire({**wire("box"), "patches": patches}, SHARES)
    with pytest.raises(ValueError, match=r"tokens, the smashed data have 8"):
        share.upload(torch.zeros(2, 8, 3))
