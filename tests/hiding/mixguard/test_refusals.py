"""Options of MixGuard that make no sense, and texts that leave it no room, are refused."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.clients import ClientError, MixGuardClient, TextSet
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import MixGuard
from flwr_splitmix.hiding.mixguard import MixGuardOptions
from tests.hiding.mixguard.clients import ORDER, PLAIN, TOY, client_of


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"k": 1}, "k is 1; it must be at least 2"),
        ({"m": 1}, "m is 1; it must be at least 2"),
        ({"k": 65}, "k is 65; it must be at most 64"),
        ({"m": 65}, "m is 65; it must be at most 64"),
        ({"k": 2**64}, "k is more than 2147483647; it must be at most 64"),
        ({"gradients": "both"}, "gradients is 'both'; it must be one of target, all-sources,"),
        ({"gradients": "all-sources", "k": 4}, "'all-sources' needs m >= k, here m is 3 and k is"),
        ({"secret_tokens": -1}, "secret_tokens is -1; it must be at least 0"),
        ({"calibration_epochs": 0}, "perturbation 'adaptive' follows the calibrator's residual"),
        ({"support_scale": 0.0}, "support_scale is 0.0; it must be positive and finite"),
        ({"max_distortion": 0.0}, "max_distortion is 0.0; it must be positive and finite"),
        ({"calibration_lr": -1.0}, "calibration_lr is -1.0; it must be positive and finite"),
        ({"strength": math.nan}, "strength is nan; it must be at least 0 and finite"),
        ({"perturbation": "Adaptive"}, "perturbation is 'Adaptive'; it must be 'adaptive', 'con"),
        ({"calibration_rank": 0}, "calibration_rank is 0; it must be at least 1"),
        ({"k": 2.5}, "k is 2.5; it must be a whole number"),
        ({"k": "3"}, "k is '3'; it must be a whole number"),
        ({"m": None}, "m is None; it must be a whole number"),
        ({"secret_tokens": True}, "secret_tokens is True; it must be a whole number"),
        ({"support_scale": "1"}, "support_scale is '1'; it must be a number"),
        ({"calibration_lr": None}, "calibration_lr is None; it must be a number"),
        ({"max_leak": "low"}, "max_leak is 'low'; it must be a number"),
        ({"strength": None}, "strength is None; it must be a number"),
        ({"pad_to": 600}, "pad_to is 600; it must be at most max_length, 512"),
        ({"secret_tokens": 512}, "secret_tokens is 512; of 512 tokens at least one must be left"),
        ({"m": 60, "sampler": "rotated"}, "no secret met the constraints in 2000 draws with m=60"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MixGuardOptions(**options)


def test_gradients_that_are_said_to_go_with_a_residual_decoding_do() -> None:
    with pytest.raises(ValueError, match="gradients must be 'target' or 'one-message'"):
        MixGuardOptions(decoding="residual", gradients="all-sources")
    for gradients in ("target", "one-message"):
        MixGuardOptions(decoding="residual", gradients=gradients)


def test_whole_numbers_may_be_numpys() -> None:
    numpys: dict[str, Any] = {"k": np.int64(3), "pad_to": np.int32(64)}
    options = MixGuardOptions(**numpys)
    assert options == MixGuardOptions(pad_to=64)
    assert {type(options.k), type(options.pad_to)} == {int}


def test_an_empty_set_of_supports_is_refused() -> None:
    with pytest.raises(ClientError, match="no public text: its set of supports is empty"):
        MixGuardClient(
            TOY.head(), TOY.tail(), TOY.texts(0, 4), TextSet([], []), vocab_size=23, device="cpu"
        )


@pytest.mark.parametrize(("texts", "warned"), [(2, True), (3, False)])
def test_fewer_supports_than_places_are_warned_of(
    texts: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    MixGuard(TOY.texts(0, texts), vocab_size=23, options=MixGuardOptions(k=4, m=4))
    assert ("with 3 supports, drawn from only 2 distinct" in caplog.text) is warned


@pytest.mark.parametrize("reserved", [0, 5])
def test_supports_that_are_the_same_text_are_warned_of(
    reserved: int, caplog: pytest.LogCaptureFixture
) -> None:
    """If they counted as several, each text would be mixed with copies of one, without a word."""
    texts = [*[torch.tensor([4, 5, 6])] * 70, *([torch.tensor([7, 8])] * 2)]
    if not reserved:
        texts = texts[:-2]
    public = TextSet(texts, texts)
    MixGuard(public, vocab_size=23, options=MixGuardOptions(k=3, m=3, support_texts=reserved))
    warning = "2 supports, drawn from only 1 distinct: .* at least 2 distinct texts as public"
    assert re.search(warning, caplog.text)
    caplog.clear()
    texts = [*texts, torch.tensor([4, 5])]
    MixGuard(TextSet(texts, texts), vocab_size=23, options=MixGuardOptions(k=3, m=3))
    assert "distinct" not in caplog.text


@pytest.mark.parametrize("name", ["data", "public"])
def test_a_text_that_leaves_no_room_for_secret_tokens_is_named_at_once(name: str) -> None:
    """A public one would otherwise end a run in the step that draws it as a support."""

    def client_with(longest: int, pad_to: int | None = None) -> MixGuardClient:
        texts = [torch.full((length,), 2) for length in (3, longest, 5)]
        sets = {"data": TOY.texts(0, 4), "public": TOY.texts(1, 4)}
        sets[name] = TextSet(texts, texts, pad_to=pad_to)
        options = replace(PLAIN, secret_tokens=2)
        parts = TOY.head(), TOY.tail(), sets["data"], sets["public"]
        return MixGuardClient(*parts, vocab_size=23, options=options, device="cpu")

    client_with(30).attach(ORDER, None)
    with pytest.raises(
        ValueError, match=f"{name} has texts of up to 31 .* at most 30, .*: cut the"
    ):
        client_with(31)
    with pytest.raises(ValueError, match=f"{name} has texts of up to 32 tokens with"):
        client_with(30, pad_to=32)


def test_a_batch_that_leaves_no_room_for_secret_tokens_is_named() -> None:
    client = client_of(secret_tokens=23)
    long = torch.full((1, 10), 2)
    with pytest.raises(ValueError, match="23 secret ones exceed max_length 32"):
        client.hiding.obfuscate(MaskedBatch(long, torch.ones_like(long), long))
