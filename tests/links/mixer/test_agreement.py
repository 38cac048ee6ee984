"""Law 4 with a third party: with the same seed, a run over a mixer equals the run without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from flwr_splitmix import Run, adamw
from flwr_splitmix.links import MixerLink, StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.privacy.journal import read_journal
from flwr_splitmix.strategies import CutMixSL
from flwr_splitmix.testing.agreement import check_same_results, read_results
from flwr_splitmix.testing.toy import Toy, ToyLower, ToyUpper
from tests.links.fake_grid import OnFakeGrid
from tests.links.kept import results
from tests.links.mixer.third_party import (
    MAKERS,
    SEED,
    SEVERAL,
    TOY,
    grid_of,
    make,
    secret,
    start,
)

Start = Callable[..., MixerServer]
LinkTo = Callable[..., MixerLink]


@pytest.mark.parametrize("update", ["sum", "mean", "sequential"])
@pytest.mark.parametrize("name", MAKERS)
def test_law_4_a_third_party_changes_no_bit(
    name: str, update: str, start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    local = make(name, run=Run.create({}, name="local", home=tmp_path), server_update=update)
    local.fit(TOY.make_clients(adamw(0.01)), 3)
    run = Run.create({}, name="third-party", home=tmp_path)
    strategy = make(name, link_to(start_mixer(), run=run.id), run, server_update=update)
    grid = grid_of(tmp_path / "nodes")
    start(strategy, grid, 3)
    grid.wait()
    assert local.recorder.run is not None
    check_same_results(read_results(local.recorder.run), results(run, tmp_path / "nodes"))


@pytest.mark.parametrize("name", ["CutMixSL", "MixupSL"])
def test_examples_may_have_several_labels(
    name: str, start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    several: dict[str, Any] = {"multi_label": True}
    local = make(name, run=Run.create({}, name="local", home=tmp_path), **several)
    local.fit(SEVERAL.make_clients(adamw(0.01)), 2)
    run = Run.create({}, name="third-party", home=tmp_path)
    strategy = make(name, link_to(start_mixer(), run=run.id), run, **several)
    grid = grid_of(tmp_path / "nodes", SEVERAL)
    start(strategy, grid, 2, SEVERAL)
    grid.wait()
    assert local.recorder.run is not None
    check_same_results(read_results(local.recorder.run), results(run, tmp_path / "nodes"))


class HalfLower(ToyLower):
    """A lower segment whose smashed data are bfloat16."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).bfloat16()


class HalfToy(Toy):
    """The toy with smashed data and an upper segment of bfloat16."""

    def lower(self) -> ToyLower:
        lower = super().lower()
        lower.__class__ = HalfLower
        return lower

    def upper(self) -> ToyUpper:
        return super().upper().bfloat16()


def test_law_4_targets_of_16_bit_smashed_data_are_sent_as_they_are(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    toy = HalfToy(clients=4, tests=0)
    options: dict[str, Any] = {"optimizer": adamw(0.01), "device": "cpu", "seed": SEED}
    local = CutMixSL(toy.upper(), min_patches=1, **options)
    local.fit(toy.make_clients(adamw(0.01)), 2)
    strategy = CutMixSL(toy.upper(), min_patches=1, link=link_to(start_mixer()), **options)
    grid = grid_of(tmp_path / "nodes", toy)
    start(strategy, grid, 2, toy)
    grid.wait()
    assert [row["loss"] for row in strategy.rows] == [row["loss"] for row in local.rows]


def test_another_seed_at_the_mixer_makes_other_masks(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    losses: list[float] = []
    for seed in (None, secret(tmp_path / "other", str(2**61 + 1))):
        options = {} if seed is None else {"seed_file": seed}
        strategy = make("CutMixSL", link_to(start_mixer(**options)))
        start(strategy, grid_of(tmp_path / f"nodes-{len(losses)}"), 1)
        losses.append(strategy.rows[0]["loss"])
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    "formats",
    [
        {"wire_dtype": "int8", "wire_feedback": True},
        {"wire_dtype": "int4-stochastic", "wire_dtype_down": "int8-stochastic"},
    ],
    ids=["feedback", "rounded by chance"],
)
def test_law_4_narrow_formats_round_as_without_a_third_party(
    formats: dict[str, Any], start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    nodes = tmp_path / "nodes"
    direct = Run.create({}, name="direct", home=tmp_path)
    strategy = make("CutMixSL", None, direct)
    grid = grid_of(nodes)
    strategy.link = OnFakeGrid(StreamLink(address="127.0.0.1:0", run=direct.id, **formats), grid)
    strategy.start(None, to_arrays(TOY.lower().state_dict()), 2)  # type: ignore[arg-type]
    grid.wait()
    run = Run.create({}, name="third-party", home=tmp_path)
    grid = grid_of(nodes)
    start(make("CutMixSL", link_to(start_mixer(), run=run.id, **formats), run), grid, 2)
    grid.wait()
    check_same_results(results(direct, nodes), results(run, nodes))


def test_the_gradients_of_large_mixtures_are_taken(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """Other calls of a ServerApp have at most a megabyte."""
    wide = replace(TOY, width=6000)
    link = link_to(start_mixer())
    strategy = CutMixSL(wide.upper(), min_patches=1, link=link, device="cpu", steps_per_round=2)
    grid = grid_of(tmp_path, wide)
    start(strategy, grid, 1, wide)
    grid.wait()
    assert strategy.rows[0]["steps"] == 2


def test_who_is_left_over_is_not_asked(start_mixer: Start, link_to: LinkTo, tmp_path: Path) -> None:
    """One of four clients is left over by groups of three; a server that mixes would see it all."""
    strategy = make("MixupSL", link_to(start_mixer()), k=3)
    grid = grid_of(tmp_path)
    start(strategy, grid, 1)
    grid.wait()
    (row,) = strategy.rows
    assert (row["steps"], row["clients_alive"], row["clients_failed"]) == (3, 4, 0)
    steps = [
        [entry["bytes"] for entry in read_journal(tmp_path / f"audit-{index}.jsonl")
         if entry["exchange"] == "step"]
        for index in range(TOY.clients)
    ]  # fmt: skip
    assert sum(bool(size) for sizes in steps for size in sizes) == 3 * row["steps"]
