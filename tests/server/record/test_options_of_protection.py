"""What a run keeps of mixers and hidings: every option, as it was given, also after use."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict, fields, replace
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from flwr_splitmix import hiding, mixers
from flwr_splitmix.hiding import (
    DPSGD,
    HIDINGS,
    Hiding,
    MixGuard,
    MixGuardOptions,
    SnD,
)
from flwr_splitmix.hiding.making import needs_public
from flwr_splitmix.mixers import (
    FrozenEdge,
    InputLevel,
    Mixer,
    Mixup,
    Noisy,
    NoMixing,
    PatchCutMix,
    RandomCutout,
    Shuffled,
    SmashedShape,
    VanillaCutMix,
)
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.server.record.same_protection import facts_of_hidings, facts_of_mixer
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from flwr_splitmix.testing.toy_texts import SPECIAL_IDS, VOCABULARY, TextToy

GROUPS: dict[str, Any] = {"regroup": "epoch", "leftover": "skip"}
NOISE: dict[str, Any] = {
    "sigma_s": 2.0,
    "sigma_y": 3.0,
    "clip": "sample",
    "clip_norm": 1.5,
    "smashed_noise": "all",
    "label_noise": "before",
    "clamp_labels": False,
}
MIXERS: dict[Any, dict[str, Any]] = {
    NoMixing: {},
    Mixup: {"k": 3, "alpha": 2.0, **GROUPS},
    PatchCutMix: {
        "k": 3,
        "alpha": 2.0,
        "rounding": "largest-remainder",
        "min_patches": 1,
        "gradient": "broadcast",
        "k_times": True,
        "mask_per_sample": True,
        **GROUPS,
    },
    VanillaCutMix: {"k": 2, "beta": 2.0, **GROUPS},
    RandomCutout: {"ratio": 0.5, "alpha": 3.0, "mask_per_sample": True, "fixed_positions": True},
    FrozenEdge: {"needs_whole_batch": True},
}
WRAPPERS: dict[Any, dict[str, Any]] = {
    Shuffled: {},
    InputLevel: {"grid": (2, 2), "across": "clients"},
    Noisy: {"noise": GaussianNoise(**NOISE)},
}
OF_MIXGUARD: dict[str, Any] = {
    "secret_tokens": 2,
    "support_texts": 3,
    "max_length": 32,
    "calibration_epochs": 1,
    "sampler": "convex",
    "support_scale": 0.5,
    "strength": 0.2,
}
BY_HAND: dict[Any, dict[str, Any]] = {
    Hiding: {"public": None},
    SnD: {"vocab_size": VOCABULARY, "calibration_rank": 4},
    MixGuard: {
        "vocab_size": VOCABULARY, "special_ids": SPECIAL_IDS,
        "options": MixGuardOptions(**OF_MIXGUARD),
    },
}  # fmt: skip
"""Options of hidings that have no default, or that only some other values fit."""


def given_to(kind: Any) -> dict[str, Any]:
    """Return options of a hiding that are not its defaults; data sets left out."""
    by_hand, hints = BY_HAND.get(kind, {}), get_type_hints(kind.__init__)
    others = {
        name: other_than(parameter.default, hints[name])
        for name, parameter in inspect.signature(kind).parameters.items()
        if name not in {"public", *by_hand}
    }
    return {**others, **by_hand}


def other_than(default: Any, hint: Any) -> Any:
    """Return another value than a default, of the same kind."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):
        return next(value for value in get_args(hint) if value != default)
    return 2 * default


def kinds(package: Any, base: type) -> set[type]:
    """Return the classes of a package's catalogue that can be made."""
    public = vars(package).values()
    classes = (each for each in public if isinstance(each, type) and issubclass(each, base))
    return {each for each in classes if not inspect.isabstract(each)}


def options_in(kind: Any) -> set[str]:
    """Return the names of a class's options, without data sets and inner mixers."""
    return set(inspect.signature(kind).parameters) - {"public", "mixer"}


def test_every_mixer_and_hiding_is_asked_for_every_option() -> None:
    assert {*MIXERS, *WRAPPERS} == kinds(mixers, Mixer)
    assert {Hiding, *HIDINGS} == kinds(hiding, Hiding)
    of_hidings: dict[Any, Any] = {kind: given_to(kind) for kind in (Hiding, *HIDINGS)}
    for kind, options in {**MIXERS, **WRAPPERS, **of_hidings}.items():
        assert set(options) - {"public"} == options_in(kind), kind
    assert set(NOISE) == {field.name for field in fields(GaussianNoise)}


def use(mixer: Mixer) -> None:
    """Draw steps of six clients."""
    shape = SmashedShape(2, 4, 3, grid=(2, 2), classes=2)
    mixer.check_clients(6)
    mixer.group_within({0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1})
    rng = np.random.default_rng(0)
    for _ in range(2):
        mixer.plan(range(6), shape, rng, np.random.default_rng(1))


def checkpointed(facts: Any) -> tuple[dict[str, Any], Any]:
    """Return options and noise as a checkpoint keeps them."""
    restored = json.loads(json.dumps(facts))
    return restored["options"], restored["noise"]


def as_json(options: dict[str, Any]) -> Any:
    return json.loads(json.dumps(options))


@pytest.mark.parametrize("kind", MIXERS, ids=lambda kind: kind.__name__)
def test_options_of_a_mixer_are_those_it_was_given(kind: Any) -> None:
    mixer = kind(**MIXERS[kind])
    assert checkpointed(facts_of_mixer(mixer)) == (MIXERS[kind], None)
    use(mixer)
    assert checkpointed(facts_of_mixer(mixer)) == (MIXERS[kind], None)


@pytest.mark.parametrize("kind", WRAPPERS, ids=lambda kind: kind.__name__)
def test_so_are_those_of_a_mixer_around_another(kind: Any) -> None:
    options = {name: value for name, value in WRAPPERS[kind].items() if name != "noise"}
    expected = as_json({**MIXERS[Mixup], **options}), NOISE if kind is Noisy else None
    mixer = kind(Mixup(**MIXERS[Mixup]), **WRAPPERS[kind])
    assert checkpointed(facts_of_mixer(mixer)) == expected
    use(mixer)
    assert checkpointed(facts_of_mixer(mixer)) == expected


@pytest.mark.parametrize("kind", [Hiding, *HIDINGS], ids=lambda kind: kind.__name__)
def test_options_of_a_hiding_are_those_it_was_given(kind: Any) -> None:
    """Not what DP-Forward has spent of its epsilon; and its clipping norm is among them."""
    if kind is DPSGD:
        pytest.importorskip("opacus")
    arguments = given_to(kind)
    expected = dict(arguments)
    if options := expected.pop("options", None):
        expected |= asdict(options)
    texts = TextToy(clients=2)
    public = {"public": texts.texts(20_000, 12)} if needs_public(kind) else {}
    toy = replace(texts, hiding=lambda: kind(**public, **arguments))
    name = next(name for name, each in USHAPE_STRATEGIES.items() if each.hiding is kind)
    strategy = USHAPE_STRATEGIES[name](toy.server(), device="cpu", steps_per_round=2)
    clients = toy.clients_for(strategy)
    assert checkpointed(facts_of_hidings(clients)) == (as_json(expected), None)
    strategy.fit(clients, 1)
    assert checkpointed(facts_of_hidings(clients)) == (as_json(expected), None)
