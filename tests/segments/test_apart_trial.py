"""A trial is made again exactly where it may find something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from flwr_splitmix.segments.apart_trial import ApartTrial


class Looks:
    """Finds what it is told, and keeps how it was asked."""

    def __init__(self, found: Sequence[str | None]) -> None:
        self._found: Iterator[str | None] = iter(found)
        self.asked: list[tuple[bool, bool]] = []

    def __call__(self, *, renewed: bool, warns: bool) -> str | None:
        self.asked.append((renewed, warns))
        return next(self._found)


def found_and_asked(
    found: Sequence[str | None], *, changes: bool
) -> tuple[list[str | None], list[tuple[bool, bool]]]:
    """Return what four trials find, whose inputs may change between them, and what they ask."""
    look, trial, module = Looks(found), ApartTrial(), nn.Linear(2, 2)
    seen = [trial.find(look, module, torch.tensor([i * changes])) for i in range(4)]
    return seen, look.asked


def test_whatever_it_found_it_is_not_made_again_of_the_same_module_and_inputs() -> None:
    """Not even if it is incomplete: clients are attached twice in their first round."""
    for found in ("", "a layer", None):
        assert found_and_asked([found], changes=False) == ([found] * 4, [(True, True)])


def test_only_a_complete_trial_that_finds_nothing_spares_the_next_one_random_weights() -> None:
    seen, asked = found_and_asked([None, "", "a layer", ""], changes=True)
    assert seen == [None, "", "a layer", ""]
    assert [renewed for renewed, _ in asked] == [True, True, False, True]


def test_that_it_cannot_tell_is_logged_once() -> None:
    _, asked = found_and_asked(["", None, None, ""], changes=True)
    assert [warns for _, warns in asked] == [True, True, False, False]


class Unknown(nn.Module):
    """One of which nobody knows what its copies are."""

    def __deepcopy__(self, memo: object) -> nn.Module:
        return nn.Identity()


def test_of_a_module_without_a_digest_it_is_made_every_time() -> None:
    look, trial, module = Looks(["", None]), ApartTrial(), Unknown()
    assert [trial.find(look, module) for _ in range(2)] == ["", None]
