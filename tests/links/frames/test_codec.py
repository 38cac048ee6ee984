"""Frames: decoding restores what was encoded, whatever the format and the pieces."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from flwr_splitmix.links.frames.body import DTYPES
from flwr_splitmix.links.frames.codec import (
    MAX_HEADER,
    PREFIX,
    Frame,
    decode,
    encode,
    encode_in_messages,
)
from flwr_splitmix.links.frames.payload import CodecError, payload_bytes
from flwr_splitmix.links.frames.wire import STOCHASTIC, WIRE_DTYPES, WireDtype, level_bits


def drawn(dtype: torch.dtype, shape: list[int], seed: int) -> torch.Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 9
    return numbers.to(dtype)


tensors = st.builds(
    drawn,
    st.sampled_from(list(DTYPES.values())),
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(0, 99),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
)
payloads = st.dictionaries(
    st.text(max_size=6),
    st.recursive(
        st.one_of(scalars, tensors),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        assert a.dtype == b.dtype
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and bool(a == b)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(payloads, st.integers(0, 2**40), st.text(max_size=9))
def test_what_goes_in_comes_out(payload: dict[str, Any], number: int, text: str) -> None:
    data = encode(Frame("call", number, text, payload))
    frame = decode(data)
    assert (frame.kind, frame.number, frame.text) == ("call", number, text)
    assert same(payload, dict(frame.payload))
    assert frame.body_bytes == payload_bytes(payload, "keep")
    assert frame.body_bytes + frame.header_bytes == len(data)


@pytest.mark.parametrize("wire", WIRE_DTYPES)
def test_activations_are_narrowed_labels_are_not(wire: WireDtype) -> None:
    labels, more, smashed, gradient = (torch.randn(s) for s in [(4, 3), (2,), (4, 6, 8), (2, 2)])
    nested = {"labels": [more], "gradient": gradient}
    payload = {"smashed": [smashed, None], "labels": labels, "nested": nested}
    frame = decode(encode(Frame("reply", 1, payload=payload), wire))
    assert frame.body_bytes == payload_bytes(payload, wire)
    received: Any = frame.payload
    assert torch.equal(received["labels"], labels)
    assert torch.equal(received["nested"]["labels"][0], more)
    for a, b in ((received["smashed"][0], smashed), (received["nested"]["gradient"], gradient)):
        assert a.dtype == torch.float32
        bits = level_bits(wire)
        level = float(b.abs().max()) / (7 if bits == 4 else 127)
        rounding = level if wire.endswith(STOCHASTIC) else level / 2
        gap = rounding if bits else 0.02
        assert torch.allclose(a, b, atol=gap, rtol=2.0**-8)
        assert torch.equal(a, b) == (wire in ("keep", "float32"))


def test_narrow_formats_save_bytes() -> None:
    payload = {"smashed": torch.randn(32, 64, 192)}
    numbers = 32 * 64 * 192
    sizes = {w: payload_bytes(payload, w) for w in WIRE_DTYPES}  # type: ignore[arg-type]
    assert sizes == {
        "keep": 4 * numbers,
        "float32": 4 * numbers,
        "bfloat16": 2 * numbers,
        "float16": 2 * numbers + 4,
        "int8": numbers + 4 * 32 * 64,
        "int8-stochastic": numbers + 4 * 32 * 64,
        "int4": numbers // 2 + 4 * 32 * 64,
        "int4-stochastic": numbers // 2 + 4 * 32 * 64,
    }


def test_what_is_rounded_by_chance_depends_on_seed_and_number() -> None:
    payload = {"smashed": torch.randn(4, 6, 8)}

    def body(number: int, seed: int) -> torch.Tensor:
        data = encode(Frame("reply", number, payload=payload), "int8-stochastic", seed=seed)
        return dict(decode(data).payload)["smashed"]  # type: ignore[no-any-return]

    assert torch.equal(body(1, 7), body(1, 7))
    assert not torch.equal(body(1, 7), body(2, 7))
    assert not torch.equal(body(1, 7), body(1, 8))


def test_the_body_is_plain_safetensors() -> None:
    payload = {"a": torch.randn(3, 2).bfloat16(), "b": [torch.arange(3), torch.zeros(0, 2)]}
    data = encode(Frame("reply", payload=payload))
    header, body = PREFIX.unpack_from(data)[3:]
    loaded = load(data[-body:])
    assert sorted(loaded) == ["0", "1", "2"]
    assert torch.equal(loaded["0"], payload["a"])  # type: ignore[arg-type]
    assert json.loads(data[PREFIX.size : PREFIX.size + header])["kind"] == "reply"


def test_decoded_tensors_own_their_memory() -> None:
    data = encode(Frame("reply", payload={"a": torch.zeros(3), "b": torch.zeros(2).bool()}))
    first: Any = decode(data).payload
    first["a"].add_(1)
    first["b"].logical_not_()
    again: Any = decode(data).payload
    assert not again["a"].any()
    assert not again["b"].any()


def test_tensors_that_share_memory_or_have_gaps_can_travel() -> None:
    whole = torch.randn(4, 6)
    payload = {"a": whole, "b": whole, "c": whole.t(), "d": whole[:, ::2], "e": whole[1, 1]}
    assert same(
        {k: v.clone() for k, v in payload.items()},
        dict(decode(encode(Frame("call", payload=payload))).payload),
    )


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (object(), "object cannot travel: only tensors and plain values can"),
        (np.int64(3), "int64 cannot travel"),
        (torch.zeros(2, dtype=torch.complex64), "tensors of torch.complex64 cannot travel"),
        ({1: "a"}, "a dictionary's keys must be strings to travel"),
        ("x" * MAX_HEADER, "a frame's header has 1048.* bytes, at most 1048576 are allowed"),
    ],
)
def test_what_cannot_travel_is_named(value: Any, sentence: str) -> None:
    with pytest.raises(CodecError, match=sentence):
        encode(Frame("call", payload={"value": value}))


def test_a_payload_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CodecError, match="nested more than 32 deep"):
        encode(Frame("call", payload={"value": endless}))


def test_a_body_above_the_limit_is_refused_on_both_sides() -> None:
    frame = Frame("call", payload={"a": torch.zeros(1000)})
    with pytest.raises(CodecError, match=r"body has 4\d\d\d bytes, at most 1000 are allowed"):
        encode(frame, max_body=1000)
    with pytest.raises(CodecError, match=r"body has 4\d\d\d bytes, at most 1000 are allowed"):
        decode(encode(frame), max_body=1000)


def test_widening_counts_against_the_limit() -> None:
    payload = {"a": torch.zeros(10, 1000, dtype=torch.float64)}
    data = encode(Frame("call", payload=payload), "int8")
    assert len(data) < 20_000
    decode(data, max_body=80_000)
    with pytest.raises(CodecError, match="larger than allowed when they are widened"):
        decode(data, max_body=79_999)


@pytest.mark.parametrize("longest", [PREFIX.size, 300, 10_000])
def test_a_frame_can_be_read_from_its_messages(longest: int) -> None:
    frame = Frame("reply", 3, payload={"a": torch.arange(40.0), "b": [torch.ones(3), 5]})
    messages = encode_in_messages(frame, longest)
    assert b"".join(messages) == encode(frame)
    assert all(len(message) == longest for message in messages[:-1])
    assert 0 < len(messages[-1]) <= longest
    read = decode(messages)
    assert torch.equal(read.payload["a"], frame.payload["a"])
    assert (read.body_bytes, read.header_bytes) == (172, len(encode(frame)) - 172)
    with pytest.raises(CodecError, match="announces"):
        decode(messages[:-1] if len(messages) > 1 else messages * 2)
