"""`labels-gradient`: labels from the norm or the direction of cut-layer gradients."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.hints import Hints
from flwr_splitmix.attacks.images.label_leaks.gradient_leaks import nearest_known, norm_leak


class LabelsGradient(Attack):
    """Scores each sample by its gradient: by its norm, or by its cosine with known samples.

    A client that is mixed with others also learns from the gradient returned for its own patches,
    since their soft label is the group's.

    Settings
    --------
    leak
        "norm": one score per sample, without known labels. "cosine": one score per class, the
        largest cosine with the gradient of a known sample of it; with two classes, only that of
        the positive class.
    hints
        Known labels, for "cosine": one positive sample of each class is enough.

    Source: DP-CutMixSL, section 6 and figure 9, after Li et al., 2022.
    """

    name = "labels-gradient"
    goal: ClassVar[Goal] = "labels"
    needs = frozenset({"gradients"})
    source = "DP-CutMixSL, figure 9; Li et al., 2022"
    hinted = True

    def run(self, view: View) -> Guess:
        """Score every row that has a gradient."""
        hints: Hints = self.setting.get("hints") or {}
        where, gradients = gradient_rows(view)
        if self.setting.get("leak", "cosine" if hints else "norm") == "norm":
            values = torch.cat([norm_leak(part) for part in gradients])
            return Guess(values, (values - values.median()).abs(), where)
        classes = view.knowledge.num_classes
        place = {at: number for number, at in enumerate(where)}
        flat = torch.cat([part.flatten(1) for part in gradients])
        at = [place[row] for row in hints if row in place]
        labels = [label for row, label in hints.items() if row in place]
        scores = nearest_known(flat, torch.tensor(at).long(), torch.tensor(labels).long(), classes)
        if len(set(labels)) <= 2:  # two classes: the similarity to a positive sample suffices
            values = scores[:, max(labels, default=0)]
            return Guess(values, (values - values.median()).abs(), where)
        return Guess(scores, scores.max(1).values, where)


def gradient_rows(view: View) -> tuple[list[tuple[int, int]], list[Tensor]]:
    """Return (release, row) of every gradient of a view, and the gradients (b, prefix + N, d)."""
    with_gradient = [(n, r) for n, r in enumerate(view.releases) if r.gradient is not None]
    where = [(n, row) for n, release in with_gradient for row in range(len(release.smashed))]
    return where, [r.gradient for _, r in with_gradient if r.gradient is not None]
