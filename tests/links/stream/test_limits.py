"""Pieces of long frames, and limits on replies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flwr_splitmix.description import (
    Description,
    SegmentDescription,
    SplitDescription,
    UShapeDescription,
)
from flwr_splitmix.links.frames.codec import MAX_BODY, Frame, decode, encode
from flwr_splitmix.links.frames.payload import CodecError
from flwr_splitmix.links.stream.limits import SLACK_BYTES, reply_limit
from flwr_splitmix.links.stream.protocol import PIECE_BYTES, in_pieces, next_frame

SHAPE = SplitDescription(
    num_examples=100,
    batch_size=32,
    segment=SegmentDescription(prefix=0, patches=64, width=192),
)
BATCH = 32 * 64 * 192 * 8


def test_a_short_frame_is_its_only_piece() -> None:
    frame = Frame("reply", 1, payload={"value": torch.ones(1000)})
    (piece,) = in_pieces(frame)
    assert piece == encode(frame)
    assert next_frame(iter([piece]), MAX_BODY) == [piece]


@pytest.mark.parametrize(
    "numbers", [PIECE_BYTES // 4 - 100, PIECE_BYTES // 4, 3 * PIECE_BYTES // 4 + 1]
)
def test_a_long_frame_is_put_together_again(numbers: int) -> None:
    value = torch.arange(numbers, dtype=torch.float32)
    frame = Frame("reply", 1, payload={"value": value})
    pieces = in_pieces(frame)
    assert b"".join(pieces) == encode(frame)
    assert [len(piece) for piece in pieces[:-1]] == [PIECE_BYTES] * (len(pieces) - 1)
    assert 0 < len(pieces[-1]) <= PIECE_BYTES
    messages = iter([*pieces, b"the next frame"])
    assert torch.equal(decode(next_frame(messages, MAX_BODY)).payload["value"], value)
    assert next(messages) == b"the next frame"


def test_no_more_is_read_than_may_come() -> None:
    """A frame above the limit is read up to its first message, one in shreds to the first shred."""
    pieces = in_pieces(Frame("hello", payload={"value": torch.ones(PIECE_BYTES)}))
    messages = iter(pieces)
    assert next_frame(messages, PIECE_BYTES) == pieces[:1]
    assert len(list(messages)) == len(pieces) - 1
    for shred in (b"", pieces[1][:1]):
        read = next_frame(iter([pieces[0], shred, *pieces[1:]]), MAX_BODY)
        assert read == [pieces[0], shred]
        with pytest.raises(CodecError, match="announces"):
            decode(read)
    first = pieces[0][:100]
    assert next_frame(iter([first, pieces[0][100:]]), MAX_BODY) == [first]
    with pytest.raises(StopIteration):
        next_frame(iter(pieces[:2]), MAX_BODY)


@pytest.mark.parametrize(
    ("payload", "limit"),
    [
        ({"plan": [{}]}, SLACK_BYTES + 2 * BATCH),
        ({"plan": [{}, None, {}]}, SLACK_BYTES + 6 * BATCH),
        ({"plan": None}, SLACK_BYTES + 2 * BATCH),
        ({"start": 0, "stop": 64}, SLACK_BYTES + 4 * BATCH),
        ({"start": 0, "stop": 4}, SLACK_BYTES + 2 * BATCH),
        ({"plan": [{}] * 64, "start": 0, "stop": 10**13}, MAX_BODY),
    ],
)
def test_a_reply_is_as_large_as_was_agreed(payload: dict[str, Any], limit: int) -> None:
    assert reply_limit(SHAPE, payload, MAX_BODY) == limit


@pytest.mark.parametrize(
    "description",
    [
        None,
        Description(num_examples=100),
        UShapeDescription(num_examples=100, batch_size=32, width=192, calibration_steps=0),
    ],
    ids=["nothing", "no shape", "texts"],
)
def test_without_a_fixed_length_any_frame_may_come(description: Description | None) -> None:
    assert reply_limit(description, {}, MAX_BODY) == MAX_BODY
