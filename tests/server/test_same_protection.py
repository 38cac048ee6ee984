"""A run goes on with the mixer, or the hiding, that it began with; other options are warned of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.mixers import (
    InputLevel,
    Mixer,
    Mixup,
    Noisy,
    NoMixing,
    PatchCutMix,
    Plan,
    Shuffled,
    SmashedShape,
)
from flwr_splitmix.mixers.elsewhere import MixedElsewhere
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.server.same_protection import PROTECTION, facts_of_mixer
from flwr_splitmix.strategies import CutMixSL, SplitStrategy, UShapeStrategy
from flwr_splitmix.testing.toy import Toy
from flwr_splitmix.testing.toy_texts import TextToy, text_toy

TOY = Toy(clients=4, batch_norm=False)
NOISE = GaussianNoise(sigma_s=20.0, sigma_y=10.0, clip_norm=1.5)


class Mine(NoMixing):
    """An own mixer, one of whose options it does not keep under its name."""

    def __init__(self, strength: float = 1.0, kept: int = 1) -> None:
        self.kept = kept

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Mix as NoMixing does."""
        return super().plan(members, shape, rng, order_rng)


def fit(run: Run, rounds: int, mixer: Mixer | None = None, **options: Any) -> None:
    again = Run.open(run.id, home=run.path.parent.parent)
    strategy = SplitStrategy(TOY.upper(), mixer=mixer, device="cpu", run=again, **options)
    strategy.fit(TOY.clients_for(strategy), rounds)


def begun(home: Path, mixer: Mixer | None = None, **options: Any) -> Run:
    run = Run.create({}, name="x", home=home)
    fit(run, 1, mixer, **options)
    return Run.open(run.id, home=home)


def warned(log: pytest.LogCaptureFixture) -> list[str]:
    return [said for record in log.records if "goes on with" in (said := record.getMessage())]


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (Mixup(), NoMixing(), "is of the mixer Mixup, and NoMixing cannot go on from it: resume w"),
        (Mixup(), None, "of the mixer Mixup, and NoMixing cannot"),
        (Noisy(Mixup(), NOISE), NoMixing(), "of the mixer Mixup, and NoMixing cannot"),
        (InputLevel(Mixup()), InputLevel(PatchCutMix()), "InputLevel(Mixup), and InputLevel(Patch"),
        (NoMixing(), Mine(), "of the mixer NoMixing, and Mine cannot"),
    ],
    ids=str,
)
def test_another_kind_of_mixer_is_refused(
    first: Mixer, then: Mixer | None, said: str, tmp_path: Path
) -> None:
    """The rest of the run was sent unmixed, without a word."""
    run = begun(tmp_path, first)
    with pytest.raises(RunError, match=said.replace("(", r"\(").replace(")", r"\)")):
        fit(run, 2, then)
    after = Run.open(run.id, home=tmp_path)
    assert (after.status, after.summary, after.rows) == ("finished", run.summary, run.rows)


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (Mixup(), Mixup(), None),
        (Mixup(2, 6), Mixup(2, 6.0), None),
        (Mixup(2), Mixup(4), "is of Mixup with k = 2, and here it has k = 4: the run goes"),
        (
            PatchCutMix(2),
            PatchCutMix(4, None, min_patches=1),
            "PatchCutMix with k = 2, alpha = 6.0, min_patches = 0, "
            "and here it has k = 4, alpha = None, min_patches = 1:",
        ),
        (InputLevel(Mixup(2)), InputLevel(Mixup(3)), "InputLevel(Mixup) with k = 2, and here"),
        (Mine(1.0, 1), Mine(2.0, 1), None),  # it does not keep its strength
        (Mine(1.0, 1), Mine(1.0, 2), "Mine with kept = 1, and here it has kept = 2:"),
        (Noisy(NoMixing(), NOISE), NoMixing(), "NoMixing with noise, and here it has no noise:"),
        (
            Noisy(NoMixing(), NOISE),
            Noisy(NoMixing(), replace(NOISE, sigma_s=2.0)),
            "NoMixing with sigma_s = 20.0, and here it has sigma_s = 2.0:",
        ),
        (NoMixing(), Noisy(NoMixing(), NOISE), None),  # of which the ledger warns
    ],
    ids=str,
)
def test_other_options_are_warned_of_once(
    first: Mixer, then: Mixer, said: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = begun(tmp_path, first)
    fit(run, 2, then)
    assert len(warned(caplog)) == (said is not None)
    assert (said or "") in caplog.text


def test_a_checkpoint_that_names_no_mixer_is_taken_as_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = begun(tmp_path, Mixup())
    kept = run.checkpoints.load()
    meta = {name: value for name, value in kept.meta.items() if name != PROTECTION}
    assert len(meta) == len(kept.meta) - 1
    run.checkpoints.save(1, kept.tensors, meta)
    fit(run, 2, NoMixing())
    assert warned(caplog) == []


def test_strategies_of_one_mixer_warn_of_its_options_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    for rounds, k in ((1, 2), (2, 4)):
        again = Run.open(run.id, home=tmp_path)
        CutMixSL(TOY.upper(), k=k, device="cpu", run=again).fit(TOY.make_clients(), rounds)
    (said,) = warned(caplog)
    assert "of round 1 is of PatchCutMix with k = 2, and here it has k = 4" in said


def test_who_runs_the_mixer_is_no_part_of_what_it_is() -> None:
    mixer = PatchCutMix(k=2, min_patches=1)
    assert facts_of_mixer(MixedElsewhere(mixer)) == facts_of_mixer(mixer)
    noisy = Noisy(mixer, NOISE)
    assert facts_of_mixer(MixedElsewhere(noisy)) == facts_of_mixer(noisy)
    assert facts_of_mixer(Shuffled(mixer))["kind"] == "Shuffled(PatchCutMix)"


def fit_texts(run: Run, rounds: int, toy: TextToy, kind: Callable[..., UShapeStrategy]) -> None:
    again = Run.open(run.id, home=run.path.parent.parent)
    strategy = kind(toy.server(), device="cpu", run=again)
    strategy.fit(toy.clients_for(strategy), rounds)


def test_a_hiding_is_treated_as_a_mixer_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients that hid nothing any more, or mixed with fewer texts, went on without a word."""
    toy = text_toy("MixGuard", clients=2)
    run = Run.create({}, name="x", home=tmp_path)
    fit_texts(run, 1, toy, UShapeStrategy)
    with pytest.raises(RunError, match=r"hiding MixGuard, and Hiding cannot .* with the hiding"):
        fit_texts(run, 2, text_toy("USplitSL", clients=2), UShapeStrategy)
    fit_texts(run, 2, toy, UShapeStrategy)
    assert warned(caplog) == []
    fewer = replace(toy, options=replace(toy.options, k=2))
    fit_texts(run, 3, fewer, UShapeStrategy)
    (said,) = warned(caplog)
    assert "of round 2 is of MixGuard with k = 3, and here it has k = 2" in said
