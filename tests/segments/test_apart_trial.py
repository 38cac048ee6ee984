"""A trial is made again exactly where it may find something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from flwr_splitmix.segments.apart_trial import ApartTrial


class Looks:
    """Finds what it is told, and keeps how it was asked."""

    def __init__(self, answers: Sequence[str | None]) -> None:
        self._answers: Iterator[str | None] = iter(answers)
        self.questions: list[tuple[bool, bool]] = []

    def __call__(self, *, renewed: bool, warns: bool) -> str | None:
        self.questions.append((renewed, warns))
        return next(self._answers)


def findings_and_questions(
    answers: Sequence[str | None], *, changes: bool
) -> tuple[list[str | None], list[tuple[bool, bool]]]:
    """Return what four trials find, whose inputs may change between them, and what they ask."""
    look, trial, module = Looks(answers), ApartTrial(), nn.Linear(2, 2)
    findings = [trial.find(look, module, torch.tensor([i * changes])) for i in range(4)]
    return findings, look.questions


def test_whatever_it_found_it_is_not_made_again_of_the_same_module_and_inputs() -> None:
    """Not even if it is incomplete: clients are attached twice in their first round."""
    for finding in ("", "a layer", None):
        assert findings_and_questions([finding], changes=False) == ([finding] * 4, [(True, True)])


def test_only_a_complete_trial_that_finds_nothing_spares_the_next_one_random_weights() -> None:
    findings, questions = findings_and_questions([None, "", "a layer", ""], changes=True)
    assert findings == [None, "", "a layer", ""]
    assert [renewed for renewed, _ in questions] == [True, True, False, True]


def test_that_it_cannot_tell_is_logged_once() -> None:
    _, questions = findings_and_questions(["", None, None, ""], changes=True)
    assert [warns for _, warns in questions] == [True, True, False, False]


class Unknown(nn.Module):
    """One of which nobody knows what its copies are."""

    def __deepcopy__(self, memo: object) -> nn.Module:
        return nn.Identity()


def test_of_a_module_without_a_digest_it_is_made_every_time() -> None:
    look, trial, module = Looks(["", None]), ApartTrial(), Unknown()
    assert [trial.find(look, module) for _ in range(2)] == ["", None]
