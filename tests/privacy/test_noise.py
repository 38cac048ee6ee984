"""The plain values of a mechanism travel unchanged, and wrong ones raise an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.mechanism import add_noise


def test_it_survives_json() -> None:
    noise = GaussianNoise(
        sigma_s=0.1, sigma_y=1 / 3, clip="range", clip_norm=0.15, label_noise="before"
    )
    assert GaussianNoise.from_plain(json.loads(json.dumps(noise.to_plain()))) == noise
    assert GaussianNoise.from_plain({"sigma_s": 1, "sigma_y": 0}).gaps == ("sigma_y",)


def test_whole_numbers_of_any_size_that_a_float_holds_are_noise() -> None:
    """A peer may send them, and torch takes none of 64 bits."""
    noise = GaussianNoise.from_plain({"sigma_s": 2**64, "sigma_y": 1, "clip_norm": 2**63})
    assert (
        noise.to_plain()
        == GaussianNoise(sigma_s=2.0**64, sigma_y=1.0, clip_norm=2.0**63).to_plain()
    )
    smashed = add_noise(torch.zeros(1, 2, 3), noise.sigma_s)
    assert smashed.isfinite().all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sigma_s": -1}, "sigma_s is -1"),
        ({"sigma_y": float("nan")}, "sigma_y is nan"),
        ({"sigma_y": "1"}, "sigma_y is '1'"),
        ({"sigma_s": True}, "sigma_s is True"),
        ({"sigma_s": 10**400}, "sigma_s is more than 2147483647; it must be a number that a float"),
        ({"clip_norm": 10**400}, "clip_norm is more than"),
        ({"clip_norm": 0}, "clip_norm is 0"),
        ({"clip_norm": float("inf")}, "clip_norm is inf"),
        ({"clip": "norm"}, "clip is 'norm'; it must be one of patch, range, sample, none"),
        ({"smashed_noise": "some"}, "it must be one of kept, all"),
        ({"label_noise": None}, "it must be one of after, before"),
        ({"clamp_labels": 1}, "clamp_labels is 1"),
        ({"sigma": 1}, "noise has no sigma; its values are"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        GaussianNoise.from_plain({"sigma_s": 1.0, "sigma_y": 1.0, **wrong})
    assert "\n" not in str(caught.value)


def test_the_sigmas_have_no_default() -> None:
    with pytest.raises(ValueError, match="noise needs sigma_s and sigma_y"):
        GaussianNoise.from_plain({"clip": "patch"})
