"""Data that are not a frame are refused with an explanation, at next to no cost."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_splitmix.links.frames.codec import (
    MAX_BODY,
    PREFIX,
    Frame,
    decode,
    encode,
)
from flwr_splitmix.links.frames.payload import CodecError, payload_bytes


def frame_of(header: Any, body: bytes = b"") -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return PREFIX.pack(b"SMXF", 1, 0, len(head), len(body)) + head + body


def head(payload: Any, **changes: Any) -> dict[str, Any]:
    return {"kind": "call", "number": 1, "text": "step", "payload": payload, **changes}


BODY = encode(Frame("call", payload={"a": torch.zeros(2), "b": torch.zeros(2).long()}))
BODY = BODY[-PREFIX.unpack_from(BODY)[4] :]
WIDER = {"tensor": 1, "dtype": "float16"}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "has at least 24 bytes, this one has 0"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not a frame of flwr-splitmix"),
        (PREFIX.pack(b"SMXF", 2, 0, 0, 0), "version 2; expected 1"),
        (PREFIX.pack(b"SMXF", 1, 7, 0, 0), "version 1; expected 1"),
        (PREFIX.pack(b"SMXF", 1, 0, 9, 0), "a frame of 24 bytes announces 33"),
        (PREFIX.pack(b"SMXF", 1, 0, 0, 2 << 30), "body has 2147483648 bytes"),
        (PREFIX.pack(b"SMXF", 1, 0, 2**63, 0), "header has 9223372036854775808 bytes"),
        (frame_of(b"not json"), "not JSON"),
        (frame_of(b"\xff\xfe"), "not JSON"),
        (frame_of(json.dumps(head({"map": {}})).encode("utf-16")), "not JSON"),
        (frame_of(head({"map": {"a": "\ud800"}})), "half a character"),
        (frame_of(head({"map": {"\udfff": 1}})), "half a character"),
        (frame_of(b"[" * 100_000), "not JSON"),
        (frame_of(b"1" * 10_000), "not JSON"),
        (frame_of([1]), "must hold kind, number, text and payload"),
        (frame_of({**head({}), "more": 1}), "must hold kind, number, text and payload"),
        (frame_of(head({"map": {}}, kind="exec")), "kind must be one of call, error"),
        (frame_of(head({"map": {}}, kind=["call"])), "kind must be one of"),
        (frame_of(head({"map": {}}, number=-1)), "number must be an integer from 0"),
        (frame_of(head({"map": {}}, number=True)), "number must be an integer from 0"),
        (frame_of(head({"map": {}}, number=2**60)), "number must be an integer from 0"),
        (frame_of(head({"map": {}}, text=3)), "text must be a string"),
        (frame_of(head([])), "payload is not a dictionary"),
        (frame_of(head({"map": {"a": {"py": "os.system"}}})), "a value of unknown kind"),
        (frame_of(head({"map": {}, "b": 1})), "a value of unknown kind"),
        (frame_of(head({"map": {"a": {"float": "1"}}})), "a value of unknown kind"),
        (frame_of(b'{"kind":"call","number":1,"text":"","payload":{"map":{"a":NaN}}}'), "not JSON"),
        (
            frame_of(b'{"kind":"call","number":1,"text":"","payload":{"map":{"a":1e999}}}'),
            "a number of a frame's header is too large",
        ),
        (frame_of(head({"map": {"a": {"tensor": 0}}})), "not there, or twice"),
        (frame_of(head({"map": {"a": {"tensor": True}}}), BODY), "position must be an integer"),
        (frame_of(head({"map": {"a": {"tensor": 0}}}), BODY), "does not mention"),
        (frame_of(head({"map": {"a": [{"tensor": 0}] * 2}}), BODY), "not there, or twice"),
        (
            frame_of(head({"map": {"a": {"tensor": 0, "scale": 1}}}), BODY),
            "must say its dtype",
        ),
        (
            frame_of(head({"map": {"a": {"tensor": 0, "dtype": "int64"}}}), BODY),
            "must be a floating-point one",
        ),
        (
            frame_of(head({"map": {"a": [{"tensor": 0}, WIDER]}}), BODY),
            "only floating-point, int8 and packed tensors can be widened",
        ),
        (
            frame_of(head({"map": {"a": {"tensor": 0, "dtype": "float64", "scale": 1}}}), BODY),
            "a scale is",
        ),
        (frame_of(head({"map": {}}), b"\x01" * 40), "the body is not safetensors: "),
    ],
)  # fmt: skip
def test_what_is_no_frame_is_refused_with_a_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(CodecError, match=sentence):
        decode(data)


def named(entries: dict[str, Any], numbers: bytes) -> bytes:
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + numbers


def body_of(*entries: Any, numbers: bytes = b"") -> bytes:
    return named({str(index): entry for index, entry in enumerate(entries)}, numbers)


def entry(dtype: Any = "U8", shape: Any = (2,), offsets: Any = (0, 2)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


NONE = "not safetensors that torch can read"
QUOTES = b'{"0":"SECRET"}  '


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"\x01", NONE),
        ((2**40).to_bytes(8, "little") + b"{}", "header is longer than allowed"),
        ((2**20 + 8).to_bytes(8, "little") + b" " * (2**20 + 8), "header is longer than allowed"),
        ((3).to_bytes(8, "little") + b"{} ", "tensor that is not there"),
        ((3).to_bytes(8, "little") + b"{]}", NONE),
        ((3).to_bytes(8, "little") + b"[1]", NONE),
        ((2).to_bytes(8, "little") + b"\xff\xfe", NONE),
        (len(QUOTES).to_bytes(8, "little") + QUOTES, NONE),
        (
            body_of(entry(dtype="F8_E5M2"), numbers=b"ab"),
            "a dtype that may not travel; these can: ",
        ),
        (body_of(entry(dtype="U16", shape=[1]), numbers=b"ab"), "a dtype that may not travel"),
        (body_of(entry(dtype="C64", shape=[1], offsets=[0, 8]), numbers=b"8 bytes!"), "a dtype"),
        (body_of(entry(dtype="F4", shape=[4]), numbers=b"ab"), NONE),
        (body_of(entry(dtype="SECRET"), numbers=b"ab"), NONE),
        (body_of(entry(dtype=["U8"]), numbers=b"ab"), NONE),
        (body_of({"dtype": "U8"}, numbers=b"ab"), NONE),
        (body_of(7), NONE),
        (body_of(entry(shape=[-2]), numbers=b"ab"), NONE),
        (body_of(entry(shape=[1.0]), numbers=b"ab"), NONE),
        (body_of(entry(shape=[0, 2**64 - 1], offsets=[0, 0])), NONE),
        (body_of(entry(shape=[0, *[2**40] * 3], offsets=[0, 0])), NONE),
        (body_of(entry(shape=[2] + [1] * 16), numbers=b"ab"), "more than 16 dimensions"),
        (body_of(entry(shape=[0] + [1] * 9999, offsets=[0, 0])), "more than 16 dimensions"),
        (body_of(entry(offsets=[0, 2, 3]), numbers=b"ab"), NONE),
        (body_of(entry(), numbers=b"a"), NONE),
        (body_of(entry(offsets=[0, 1]), numbers=b"a"), NONE),
        (body_of(entry(offsets=[1, 3]), numbers=b"abc"), NONE),
        (body_of(entry(), entry(), numbers=b"ab"), NONE),
        (body_of(entry(shape=[2**40, 2**23]), numbers=b"ab"), NONE),
        (body_of(entry(), numbers=b"abc"), NONE),
        (named({"1": entry()}, b"ab"), "named by their positions"),
        (named({"0": entry(), "00": entry(offsets=[2, 4])}, b"abcd"), "named by their positions"),
    ],
)
def test_what_is_no_body_is_refused(body: bytes, sentence: str) -> None:
    with pytest.raises(CodecError, match=sentence) as caught:
        decode(frame_of(head({"map": {"a": {"tensor": 0}}}), body))
    assert "SECRET" not in str(caught.value)


def test_announcing_two_gigabytes_costs_nothing() -> None:
    tracemalloc.start()
    began = time.thread_time()  # of the processor, which others may keep busy
    for announced in (2 << 30, 2**64 - 1):
        with pytest.raises(CodecError, match="at most"):
            decode(PREFIX.pack(b"SMXF", 1, 0, 100, announced) + b"x" * 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert time.thread_time() - began < 1
    assert MAX_BODY < 2 << 30


PAYLOADS: list[dict[str, Any]] = [
    {"gradient": [torch.randn(2, 3), None], "plan": [{"k": 1}]},
    {"smashed": [torch.randn(2, 3, 4)], "labels": torch.arange(2)},
    {"num-examples": 12, "x": float("nan"), "t": torch.ones(2).bool()},
]
FRAMES = [encode(Frame("reply", 3, "", payload), "int8") for payload in PAYLOADS]
LENGTHS = (0, 1, 7, 8, 255, 2**16, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Damage a frame: cut it, repeat a part, flip bits, overwrite bytes, announce other lengths."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(5)
        place = rng.randrange(max(len(changed), 1))
        if kind == 0:
            del changed[place:]
        elif kind == 1:
            changed[place:place] = changed[place : place + rng.randint(1, 40)]
        elif kind == 2 and changed:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 3:
            changed[place : place + 8] = rng.randbytes(rng.randint(0, 8))
        elif len(changed) >= PREFIX.size:
            start = rng.choice((8, 16))
            changed[start : start + 8] = rng.choice(LENGTHS).to_bytes(8, "little")
    if rng.random() < 0.7:  # correct lengths, as a malicious peer would send
        header, rest = PREFIX.unpack_from(data)[3], bytes(changed[PREFIX.size :])
        header = min(header, len(rest))
        return PREFIX.pack(b"SMXF", 1, 0, header, len(rest) - header) + rest
    return bytes(changed)


def is_refused_or_read(data: bytes) -> bool:
    try:
        frame = decode(data, max_body=10_000)
    except CodecError as error:
        return len(str(error)) < 300
    return payload_bytes(frame.payload, "keep") <= 10_000


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 2**63), st.sampled_from(FRAMES))
def test_ten_thousand_damaged_frames_are_refused_or_read(seed: int, data: bytes) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        assert is_refused_or_read(mutated(data, rng))


@pytest.mark.parametrize("data", FRAMES)
def test_no_part_of_a_frame_is_taken_for_a_whole(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(CodecError):
            decode(data[:length])
