"""What a cut of a language model costs its client."""

from __future__ import annotations

from dataclasses import replace

from flwr_splitmix.apps.language.advice import advise, open_run_model, traffic_of
from flwr_splitmix.segments.advice import CutCosts
from tests.apps.language_app import read

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
