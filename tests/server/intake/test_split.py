"""Nothing that a client sends or says reaches the model unchecked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.events import RoundDone
from flwr_splitmix.links.frames.wire import WIRE_DTYPES, narrow, widen
from flwr_splitmix.mixers import (
    FullShare,
    Mixer,
    Mixup,
    Noisy,
    NoisyShare,
    NoMixing,
    PatchCutMix,
    Plan,
    SmashedShape,
)
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.mechanism import clip_smashed
from flwr_splitmix.server.intake.checks import UploadError
from flwr_splitmix.server.intake.finite import FiniteCheck
from flwr_splitmix.server.intake.split import LabelRules, read_test_upload, read_upload
from flwr_splitmix.strategies import SFL
from flwr_splitmix.testing.toy import Toy, sgd

SHAPE = SmashedShape(batch=4, patches=6, width=3)
PLAN = NoMixing().plan([0], SHAPE, np.random.default_rng(0))
LABELS = torch.tensor([0, 1, 2, 0])


def smashed(*shape: int) -> Tensor:
    return torch.zeros(shape or SHAPE.size)


def poisoned(value: float) -> Tensor:
    tensor = smashed()
    tensor[3, 5, 2] = value
    return tensor


def read(reply: Mapping[str, Any], plan: Plan = PLAN, client: int = 0) -> Any:
    return read_upload(
        reply, plan, client, LabelRules(3), dtype=torch.float32, finite=FiniteCheck()
    )


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ({"smashed": None}, "no list of 1 smashed tensor$"),
        ({"smashed": smashed()}, "no list of 1 smashed tensor$"),
        ({"smashed": []}, "no list of 1 smashed tensor$"),
        ({"smashed": [smashed(), smashed()]}, "no list of 1 smashed tensor$"),
        ({"smashed": [None]}, "smashed data for a pass that is not its own"),
        ({"smashed": ["x"]}, r"uploaded str, expected \(4, 6, 3\) of torch.float32"),
        ({"smashed": [smashed(4, 7, 3)]}, r"uploaded \(4, 7, 3\) of torch.float32, expected"),
        ({"smashed": [smashed(3, 6, 3)]}, r"uploaded \(3, 6, 3\)"),
        ({"smashed": [smashed(4, 18)]}, r"uploaded \(4, 18\)"),
        ({"smashed": [smashed().double()]}, "of torch.float64, expected"),
        ({"smashed": [smashed().bfloat16()]}, r"in one dtype: convert the output .* \.float\(\)$"),
        (
            {"smashed": [smashed().to(torch.complex64)]},
            r"with torch\.view_as_real\(output\)\.flatten",
        ),
        ({"smashed": [smashed().to(torch.complex64)]}, "of torch.complex64, expected"),
        ({"smashed": [poisoned(float("nan"))]}, "NaN or infinite"),
        ({"smashed": [poisoned(float("inf"))]}, "NaN or infinite"),
        ({"smashed": [poisoned(float("-inf"))]}, "NaN or infinite"),
        ({"labels": None}, "no labels"),
        ({"labels": [0, 1, 2, 0]}, "no labels"),
        ({"labels": LABELS[:3]}, r"labels have shape \(3,\) of torch.int64, expected \(4,\)"),
        ({"labels": LABELS.int()}, r"of torch.int32, expected \(4,\) of torch.int64"),
        ({"labels": torch.tensor([0, 1, 2, 3])}, r"labels lie in 0..3, expected 0..2"),
        ({"labels": torch.tensor([0, 1, 2, -1])}, r"labels lie in -1..2, expected 0..2"),
        ({"labels": torch.zeros(4, 3)}, r"of torch.float32, expected \(4,\) of torch.int64"),
    ],
)
def test_nonsense_is_refused_with_what_was_expected(reply: dict[str, Any], sentence: str) -> None:
    good = {"smashed": [smashed()], "labels": LABELS}
    read(good)
    with pytest.raises(UploadError, match=sentence):
        read({**good, **reply})


def test_finite_numbers_that_would_overflow_in_the_model_are_refused() -> None:
    sentence = "sent numbers beyond 1e\\+06, which would overflow in the model"
    large = torch.full(SHAPE.size, -1e6)
    assert read({"smashed": [large], "labels": LABELS}).smashed[0] is large
    for number in (-1e7, 3e38):
        reply = {"smashed": [poisoned(number)], "labels": LABELS}
        with pytest.raises(UploadError, match=sentence):
            read(reply)
        with pytest.raises(UploadError, match=sentence):
            read_test_upload(reply, SHAPE, LabelRules(3), torch.float32)


NOISE = GaussianNoise(sigma_s=0.5, sigma_y=2.0, clip_norm=3.0, clamp_labels=False)


def noised(noise: GaussianNoise = NOISE, mixer: Mixer | None = None) -> Plan:
    noisy = Noisy(mixer or Mixup(2, alpha=None), noise)
    return noisy.plan([0, 1], replace(SHAPE, classes=3), np.random.default_rng(0))


def filled(plan: Plan, number: float, label: float) -> dict[str, Any]:
    share = plan.shares(0)[0]
    assert share is not None
    return {
        "smashed": [torch.full(share.upload_shape(SHAPE.size), number)],
        "labels": [torch.full((4, 3), label)],
    }


@pytest.mark.parametrize(
    ("clip", "number"), [("patch", 7.4), ("sample", 7.4), ("range", 5.9), ("none", 1e6)]
)
@pytest.mark.parametrize("mixer", [NoMixing(), Mixup(2), PatchCutMix(2)], ids=str)
def test_smashed_data_that_no_noise_can_make_are_refused(
    clip: Any, number: float, mixer: Mixer
) -> None:
    """Numbers of 1e6 in one step could ruin a run."""
    plan = noised(replace(NOISE, clip=clip), mixer)
    for sign in (1, -1):
        read(filled(plan, sign * number, 0.0), plan)
        with pytest.raises(UploadError, match=r"smashed data outside|sent numbers beyond"):
            read(filled(plan, sign * (1.05 * number), 0.0), plan)


@pytest.mark.parametrize("place", ["after", "before"])
def test_soft_labels_that_no_noise_can_make_are_refused(place: Any) -> None:
    plan = noised(replace(NOISE, label_noise=place))
    for label in (-18.0, 19.0):
        read(filled(plan, 0.0, label), plan)
    for label in (-18.5, 19.5, 1e30):
        with pytest.raises(UploadError, match=r"soft labels outside|sent numbers beyond"):
            read(filled(plan, 0.0, label), plan)


@pytest.mark.parametrize("wire", WIRE_DTYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_numbers_that_a_client_can_send_pass_rounded(
    wire: Any, dtype: torch.dtype
) -> None:
    """Clipping keeps a patch of one number, and the farthest noise is 8.6 sigma."""
    record = torch.zeros(SHAPE.size)
    record[..., 0] = 3.0
    for sigma in (1e-6, 0.5):
        noise = replace(NOISE, sigma_s=sigma)
        farthest = clip_smashed(record * 100, noise) + 8.6 * sigma
        narrowed, scale = narrow(farthest.to(dtype), wire, torch.Generator().manual_seed(0))
        plan = noised(noise, NoMixing())
        reply = {**filled(plan, 0.0, 0.0), "smashed": [widen(narrowed, scale, dtype)]}
        reply["labels"] = [reply["labels"][0].to(dtype)]
        read_upload(reply, plan, 0, LabelRules(3), dtype, finite=FiniteCheck())


def test_a_share_of_ones_own_that_may_make_numbers_larger_has_no_limit() -> None:
    class Turned(FullShare):
        name = "turned"
        family = "full"

        def upload(self, smashed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            summed = smashed.sum(1, keepdim=True).expand_as(smashed) / SHAPE.patches**0.5
            return summed, summed

    assert math.isinf(NoisyShare.around(Turned(), NOISE, 3).smashed_limit)
    assert NoisyShare.around(FullShare(), NOISE, 3).smashed_limit < 8


def test_more_patches_than_the_share_are_refused() -> None:
    plan = PatchCutMix(2).plan([0, 1], SHAPE, np.random.default_rng(0))
    share = plan.shares(0)[0]
    assert share is not None
    _, patches, _ = share.upload_shape(SHAPE.size)
    read({"smashed": [smashed(4, patches, 3)], "labels": LABELS}, plan)
    for count in (patches - 1, patches + 1, SHAPE.patches):
        with pytest.raises(UploadError, match=rf"expected \(4, {patches}, 3\)"):
            read({"smashed": [smashed(4, count, 3)], "labels": LABELS}, plan)


def test_a_client_uploads_in_its_own_passes_only() -> None:
    plan = PatchCutMix(2, k_times=True).plan(range(3), SHAPE, np.random.default_rng(0))
    (alone,) = plan.unmixed
    read({"smashed": [smashed(), None], "labels": LABELS}, plan, alone)
    with pytest.raises(UploadError, match="for a pass that is not its own"):
        read({"smashed": [smashed(), smashed()], "labels": LABELS}, plan, alone)
    with pytest.raises(UploadError, match="no list of 2"):
        read({"smashed": [smashed()], "labels": LABELS}, plan, alone)


def test_test_examples_have_integer_labels() -> None:
    good = {"smashed": [smashed()], "labels": LABELS}
    assert read_test_upload(good, SHAPE, LabelRules(3), torch.float32)[1] is LABELS
    lies: list[dict[str, Any]] = [
        {"labels": torch.rand(4, 3)},
        {"smashed": []},
        {"smashed": [poisoned(float("nan"))]},
        {"smashed": [smashed(3, 6, 3)]},
    ]
    for bad in lies:
        with pytest.raises(UploadError):
            read_test_upload({**good, **bad}, SHAPE, LabelRules(3), torch.float32)


def test_metrics_that_would_spoil_the_average_cost_their_sender() -> None:
    toy = Toy(clients=4)
    clients = list(toy.make_clients(sgd(0.1)))
    right = SplitClient.release

    def release(self: SplitClient) -> Any:
        arrays, metrics = right(self)
        wrong: dict[int, dict[str, float]] = {
            1: {"num-examples": 10**9},
            2: {"odd": 1.0},
            3: {"num-steps": float("nan")},
        }
        return arrays, {**metrics, **wrong.get(self.order.client, {})}

    events: list[RoundDone] = []

    class Rounds(Observer):
        def on_round(self, event: RoundDone) -> None:
            events.append(event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SplitClient, "release", release)
        SFL(toy.upper(), device="cpu", observers=[Rounds()]).fit(clients, 1)
    # What only client 2 says is dropped, and the client is not.
    assert sorted(events[0].failures) == [1, 3]
    assert "1000000000 examples now, and reported 12 before" in events[0].failures[1]
