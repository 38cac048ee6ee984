"""A resumed run keeps the mixer, or the hiding, that it began with; other options warn."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.hiding import DPForward
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
from flwr_splitmix.server.record.same_protection import (
    PROTECTION,
    check_same,
    facts_of_hidings,
    facts_of_mixer,
)
from flwr_splitmix.strategies import CutMixSL, DPForwardSL, SplitStrategy, UShapeStrategy
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
    return [
        message for record in log.records if "continues with" in (message := record.getMessage())
    ]


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (
            Mixup(),
            NoMixing(),
            "is from the mixer Mixup, and NoMixing cannot resume from it: resume w",
        ),
        (Mixup(), None, "from the mixer Mixup, and NoMixing cannot"),
        (Noisy(Mixup(), NOISE), NoMixing(), "from the mixer Mixup, and NoMixing cannot"),
        (InputLevel(Mixup()), InputLevel(PatchCutMix()), "InputLevel(Mixup), and InputLevel(Patch"),
        (NoMixing(), Mine(), "from the mixer NoMixing, and Mine cannot"),
    ],
    ids=str,
)
def test_another_kind_of_mixer_is_refused(
    first: Mixer, then: Mixer | None, message: str, tmp_path: Path
) -> None:
    """The rest of the run would be sent unmixed, without a word."""
    run = begun(tmp_path, first)
    with pytest.raises(RunError, match=message.replace("(", r"\(").replace(")", r"\)")):
        fit(run, 2, then)
    after = Run.open(run.id, home=tmp_path)
    assert (after.status, after.summary, after.rows) == ("finished", run.summary, run.rows)


@pytest.mark.parametrize(
    ("first", "then", "warning"),
    [
        (Mixup(), Mixup(), None),
        (Mixup(2, 6), Mixup(2, 6.0), None),
        (Mixup(2), Mixup(4), "is from Mixup with k = 2, and here it has k = 4: the run cont"),
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
    first: Mixer, then: Mixer, warning: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = begun(tmp_path, first)
    fit(run, 2, then)
    assert len(warned(caplog)) == (warning is not None)
    assert (warning or "") in caplog.text


def test_a_checkpoint_that_names_no_mixer_is_taken_as_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = begun(tmp_path, Mixup())
    checkpoint = run.checkpoints.load()
    meta = {name: value for name, value in checkpoint.meta.items() if name != PROTECTION}
    assert len(meta) == len(checkpoint.meta) - 1
    run.checkpoints.save(1, checkpoint.tensors, meta)
    fit(run, 2, NoMixing())
    assert warned(caplog) == []


def test_strategies_of_one_mixer_warn_of_its_options_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create({}, name="x", home=tmp_path)
    for rounds, k in ((1, 2), (2, 4)):
        again = Run.open(run.id, home=tmp_path)
        CutMixSL(TOY.upper(), k=k, device="cpu", run=again).fit(TOY.make_clients(), rounds)
    (warning,) = warned(caplog)
    assert "of round 1 is from PatchCutMix with k = 2, and here it has k = 4" in warning


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
    """Clients that hide nothing any more, or mix with fewer texts, would go on without a word."""
    toy = text_toy("MixGuard", clients=2)
    run = Run.create({}, name="x", home=tmp_path)
    fit_texts(run, 1, toy, UShapeStrategy)
    with pytest.raises(RunError, match=r"hiding MixGuard, and Hiding cannot .* with the hiding"):
        fit_texts(run, 2, text_toy("USplitSL", clients=2), UShapeStrategy)
    fit_texts(run, 2, toy, UShapeStrategy)
    assert warned(caplog) == []
    fewer = replace(toy, options=replace(toy.options, k=2))
    fit_texts(run, 3, fewer, UShapeStrategy)
    (warning,) = warned(caplog)
    assert "of round 2 is from MixGuard with k = 3, and here it has k = 2" in warning


def private(*options: dict[str, Any]) -> TextToy:
    """Return clients of DP-Forward with these options, one each."""
    each = itertools.cycle(options)
    return text_toy("DPForwardSL", clients=len(options), hiding=lambda: DPForward(**next(each)))


def test_what_a_hiding_has_spent_is_no_option_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Warned of in every resumption, it would hide a weaker guarantee, which is warned of."""
    run = Run.create({}, name="x", home=tmp_path)
    for rounds in (1, 2):
        fit_texts(run, rounds, private({}, {}), DPForwardSL)
    assert warned(caplog) == []
    weak = {"epsilon": 8000.0, "clip_norm": 50.0}
    fit_texts(run, 3, private(weak, weak), DPForwardSL)
    (warning,) = warned(caplog)
    assert "is from DPForward with epsilon = 8.0, clip_norm = 1.0, and here it has " in warning
    assert "here it has epsilon = 8000.0, clip_norm = 50.0: the run" in warning


LOW, HIGH = {"epsilon": 8.0}, {"epsilon": 800.0}


@pytest.mark.parametrize(
    ("first", "then", "warning"),
    [
        ([LOW, HIGH], [LOW, HIGH], None),
        ([LOW, LOW], [LOW, HIGH], "epsilon = 8.0 of client 1, and here it has epsilon = 800.0 of"),
        ([LOW, HIGH], [LOW, LOW], "epsilon = 800.0 of client 1, and here it has epsilon = 8.0 of"),
        ([LOW] * 4, [LOW] + [HIGH] * 3, "= 8.0 of client 1 and 2 more, and here it has epsilon ="),
        (
            [LOW, HIGH],
            [HIGH, HIGH],
            "epsilon = 8.0 of client 0, and here it has epsilon = 800.0 of",
        ),
        ([LOW, HIGH], [HIGH, LOW], "epsilon = 8.0 of client 0, epsilon = 800.0 of client 1, and"),
        ([LOW, LOW], [HIGH, HIGH], "with epsilon = 8.0, and here it has epsilon = 800.0: the run"),
        ([LOW, LOW, HIGH], [LOW, LOW], None),  # of fewer clients the run warns
    ],
)
def test_hidings_of_all_clients_are_compared(
    first: list[dict[str, Any]],
    then: list[dict[str, Any]],
    warning: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not only the first client's."""
    facts = [facts_of_hidings(private(*options).clients_for()) for options in (first, then)]
    began = json.loads(json.dumps(facts[0]))  # as a checkpoint keeps it
    check_same("the checkpoint", began, facts[1])
    assert len(warned(caplog)) == (warning is not None)
    assert (warning or "") in caplog.text


class Own(DPForward):
    """Has an option that others do not have."""

    def __init__(self, strength: float = 2.0) -> None:
        super().__init__(epsilon=4.0)
        self.strength = strength


def test_of_hidings_of_several_kinds_the_options_count_that_all_have() -> None:
    kinds = itertools.cycle([Own, DPForward])
    toy = text_toy("DPForwardSL", clients=2, hiding=lambda: next(kinds)())
    facts = facts_of_hidings(toy.clients_for())
    assert facts["kind"] == "DPForward, Own"
    assert facts["options"] == {**DPForward().made_with(), "epsilon": 4.0}
    assert facts["clients"] == [{"epsilon": 4.0}, {"epsilon": 8.0}]
    assert Own().made_with()["strength"] == 2.0
