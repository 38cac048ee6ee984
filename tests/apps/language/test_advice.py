"""The costs of a cut of a language model for its client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flwr_splitmix.apps.language.advice import advise, open_run_model, traffic_of
from flwr_splitmix.apps.language.server import build_trunk
from flwr_splitmix.segments.advice import CutCosts
from flwr_splitmix.server.segments.trunk import TrainedTrunk
from tests.apps.language_app import TINY, client, read
from tests.apps.ushape_work import UNHURRIED, macs_of_step

SPEEDS = {
    "uplink": 1e8, "downlink": 1e8, "rtt": 1e-3,
    "client_flops": 1e9, "server_flops": 1e12,
}  # fmt: skip


def test_weights_that_embedding_and_output_layer_share_are_counted_once() -> None:
    config = read(model="small", small_layers=3)
    model, parts = open_run_model(config)

    def cuts(tied: bool) -> list[CutCosts]:
        return list(advise(config, model, replace(parts, tied=tied), 16, 1, SPEEDS).cuts)

    shared = parts.vocab_size * parts.width
    for once, twice in zip(cuts(True), cuts(False), strict=True):
        assert twice.client_parameters - once.client_parameters == shared
        # Weight, gradient and AdamW's two moments, of four bytes each.
        assert twice.client_memory_bytes - once.client_memory_bytes == 16 * shared


def test_half_as_much_travels_where_only_tails_learn() -> None:
    every, alone = (
        traffic_of(read(strategy="USplitSL", learns=learns), tokens=8, width=64)
        for learns in ("all", "tail")
    )
    mask = 16 * 8  # a byte for each token
    assert (every[0] - mask, every[1]) == (2 * (alone[0] - mask), 2 * alone[1])


@pytest.mark.parametrize("strategy", ["MixGuard", "SnDSL", "NaiveMixSL"])
def test_a_steps_bytes_are_those_of_its_messages_and_of_refinement(strategy: str) -> None:
    """Refinement counts without epochs beforehand (`refine-only`), too."""

    def up(**values: Any) -> int:
        return traffic_of(read(strategy=strategy, **values), tokens=8, width=64)[0]

    messages = 3 if strategy == "MixGuard" else 1
    mask, tensor = 16 * 8, 16 * 8 * 64 * 4
    plain = 2 * messages * tensor + mask
    refined = (messages + 1) * tensor + mask if strategy != "NaiveMixSL" else 0
    never = {"calibration_epochs": 0, "perturbation": "none"}
    assert up(m=3, refine_every=0) == up(m=3, refine_every=1, **never) == plain
    assert up(m=3, refine_every=4) == plain + refined // 4
    if strategy == "MixGuard":
        assert up(m=3, refine_every=4, refine_only=True, **never) == plain + refined // 4


@pytest.mark.parametrize("learns", ["all", "tail"])
def test_the_work_is_that_of_a_step(learns: str) -> None:
    """With `learns='tail'`, head and trunk have no backward pass."""
    tokens = 60
    values: dict[str, Any] = {
        **TINY, "strategy": "USplitSL", "learns": learns, "pad_to": tokens, "max_length": tokens,
        "small_width": 128,
    }  # fmt: skip
    config = read(**values)
    speeds = {**UNHURRIED, "server_flops": 1.0}
    advice = advise(config, *open_run_model(config), tokens, 1, speeds)
    (chosen,) = (cut for cut in advice.cuts if cut.default)
    trunk = TrainedTrunk(build_trunk(config), device="cpu")
    at_client, at_server = macs_of_step(client(0, 1, **values), trunk)
    assert chosen.client_macs == pytest.approx(at_client, rel=1e-9)
    assert chosen.step_s / 2 == pytest.approx(at_server, rel=1e-9)


@pytest.mark.parametrize("parts", ["head,trunk,tail", "trunk", "head"])
def test_gradients_of_weights_behind_adapters_are_not_computed(parts: str) -> None:
    """In client and trunk; and a head's weights are not trained because the tail's are."""
    tokens = 60
    values: dict[str, Any] = {
        **TINY, "strategy": "USplitSL", "pad_to": tokens, "max_length": tokens,
        "small_width": 128, "small_layers": 6, "head_layers": 2, "tail_layers": 2,
        "lora_rank": 1, "lora_parts": parts,
    }  # fmt: skip
    config = read(**values)
    advice = advise(config, *open_run_model(config), tokens, 1, {**UNHURRIED, "server_flops": 1.0})
    (chosen,) = (cut for cut in advice.cuts if cut.default)
    trunk = TrainedTrunk(build_trunk(config), device="cpu")
    at_client, at_server = macs_of_step(client(0, 1, **values), trunk)
    # The adapters' own products are neglected, and the first layer's inputs need no gradient.
    assert chosen.client_macs == pytest.approx(at_client, rel=0.05)
    assert chosen.step_s / 2 == pytest.approx(at_server, rel=0.05)


def test_a_layer_that_does_not_learn_takes_memory_for_its_weights_alone() -> None:
    config = read(model="small", small_layers=3, learns="tail")
    cuts = {cut.cut_at: cut for cut in advise(config, *open_run_model(config), 16, 1, SPEEDS).cuts}
    shallow, deep = (cuts[f"head-layers={head} tail-layers=1"] for head in (0, 1))
    weights = 4 * (deep.client_parameters - shallow.client_parameters)
    assert deep.client_memory_bytes - shallow.client_memory_bytes == weights > 0
