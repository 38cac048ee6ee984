"""Error feedback: gradients' rounding errors are added to the next gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flwr_splitmix.links.frames.feedback import Feedback
from flwr_splitmix.links.frames.wire import narrow, widen


def arrived(feedback: Feedback | None, number: int, gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a client receives it in int4."""
    payload: Any = {"gradient": [gradient]}
    if feedback is not None:
        payload = feedback.correct(number, payload)
    return widen(*narrow(payload["gradient"][0], "int4"), gradient.dtype)


def test_the_sum_of_what_arrives_is_that_of_the_gradients() -> None:
    """Without feedback, a small number next to a large one never arrives."""
    gradient = torch.tensor([[[7.0, 0.3, -0.2]]])
    feedback = Feedback("int4")
    with_rest = sum(arrived(feedback, n, gradient) for n in range(1, 31))
    without = sum(arrived(None, n, gradient) for n in range(1, 31))
    assert isinstance(with_rest, torch.Tensor)
    assert isinstance(without, torch.Tensor)
    # The remaining error at the end is at most half a level.
    assert torch.allclose(with_rest, 30 * gradient, atol=0.55)
    assert not without[..., 1:].any()


def test_a_call_that_is_made_again_is_the_same() -> None:
    feedback = Feedback("int8")
    feedback.correct(1, {"gradient": [torch.randn(2, 3)]})
    payload = {"gradient": [torch.randn(2, 3)], "number": 1}
    first, again = (feedback.correct(2, payload) for _ in range(2))
    assert torch.equal(first["gradient"][0], again["gradient"][0])
    assert not torch.equal(first["gradient"][0], payload["gradient"][0])  # type: ignore[index]
    assert first["number"] == 1


def test_calls_without_gradients_leave_the_rest_as_it_is() -> None:
    gradient = torch.tensor([[1.0, 0.0035]])
    one, other = Feedback("int8"), Feedback("int8")
    expected = [one.correct(n, {"gradient": [gradient]})["gradient"][0] for n in (1, 2)][1]
    other.correct(1, {"gradient": [gradient]})
    assert other.correct(2, {"gradient": None}) == {"gradient": None}
    assert other.correct(3, {"start": 0}) == {"start": 0}
    assert torch.equal(other.correct(4, {"gradient": [gradient]})["gradient"][0], expected)


def test_a_rest_of_another_shape_is_dropped() -> None:
    feedback = Feedback("int8")
    feedback.correct(1, {"gradient": [torch.randn(4, 3), None]})
    shorter, new = torch.randn(2, 3), torch.randn(4, 3)
    corrected = feedback.correct(2, {"gradient": [shorter, new]})["gradient"]
    assert torch.equal(corrected[0], shorter)
    assert torch.equal(corrected[1], new)


def test_a_gradient_that_overflows_does_not_spoil_the_next() -> None:
    feedback = Feedback("int8")
    feedback.correct(1, {"gradient": [torch.tensor([[1.0, float("inf")]])]})
    corrected = feedback.correct(2, {"gradient": [torch.ones(1, 2)]})["gradient"][0]
    assert corrected.isfinite().all()


@pytest.mark.parametrize("wire", ["keep", "bfloat16", "int8-stochastic"])
def test_formats_that_leave_nothing_to_feed_back_are_refused(wire: Any) -> None:
    with pytest.raises(ValueError, match=f"not as '{wire}': set wire-dtype-down to 'int8'"):
        Feedback(wire)
