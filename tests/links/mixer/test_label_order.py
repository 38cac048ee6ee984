"""Which example of a node is in which row of a mixture: the server must not know it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from flwr_splitmix import adamw
from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.clients import exchange
from flwr_splitmix.links import MixerLink
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.strategies import CutMixSL, MixupSL
from flwr_splitmix.testing.toy import Toy
from tests.links.fake_grid import FakeGrid, OneAtATime, toy_app
from tests.links.mixer.label_vote import read_labels
from tests.links.mixer.third_party import TOY as FOUR
from tests.links.mixer.third_party import make, start

Start = Callable[..., MixerServer]
LinkTo = Callable[..., MixerLink]

TOY = Toy(clients=4, classes=5, patches=6, examples=24, batch=6)
SEED = 11
EPOCHS = 6


def share_read(mixer: MixerServer, link: MixerLink, strategy: Any, **node_config: Any) -> float:
    """Return the share of all nodes' labels that the vote reads from a run's soft labels."""
    recorder = Recorder()
    run = strategy(
        TOY.upper(), link=link, device="cpu", seed=SEED, observers=[recorder],
        **({"min_patches": 1} if strategy is CutMixSL else {}),
    )  # fmt: skip
    app = toy_app(TOY, kind=OneAtATime, optimizer=adamw(0.01), repeatable_secrets=False)
    grid = FakeGrid(app, TOY.clients, **node_config)
    start(run, grid, EPOCHS, TOY)
    grid.wait()
    steps = [step for step in recorder.trace.steps() if isinstance(step, Step)]
    assert len(steps) == EPOCHS * 4
    soft = [[upload.labels[0] for _, upload in sorted(step.uploads.items())] for step in steps]
    read = read_labels(soft, [24] * TOY.clients, TOY.batch, SEED)  # type: ignore[arg-type]
    return float((torch.cat(read) == torch.cat(TOY.labels())).double().mean())


@pytest.mark.parametrize("strategy", [CutMixSL, MixupSL])
def test_with_a_mixer_of_its_own_a_nodes_labels_are_read_at_chance_only(
    strategy: Any, start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    mixer = start_mixer(certificate=None, key=None, seed_file=None)
    share = share_read(
        mixer,
        link_to(mixer, ca=None),
        strategy,
        **{"state-dir": str(tmp_path), "link-via": mixer.address},
    )
    most_frequent = torch.cat(TOY.labels()).bincount().max() / (24 * TOY.clients)
    assert share < float(most_frequent) + 0.15


@pytest.mark.parametrize("strategy", [CutMixSL, MixupSL])
def test_a_node_that_goes_where_the_server_says_draws_the_runs_order_and_its_labels_are_read(
    strategy: Any, start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """Such a node has no protection from the server: without a mixer, it repeats bit for bit."""
    mixer = start_mixer(certificate=None, key=None, seed_file=None)
    share = share_read(mixer, link_to(mixer, ca=None), strategy, **{"state-dir": str(tmp_path)})
    assert share > 0.95


class Remembers(OneAtATime):
    """Remembers which examples were in its batches."""

    drawn_batches: ClassVar[dict[int, list[list[int]]]] = {}

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        before = self.batches.drawn
        reply = super().step(**arguments)
        if self.batches.drawn > before:
            self.drawn_batches.setdefault(self.order.client, []).append(
                self.batches.indices.tolist()
            )
        return reply


def batches_of(mixer: MixerServer, link: MixerLink, folder: Path, rounds: int) -> Any:
    """Return, by client, the examples of all its batches in rounds of two steps."""
    Remembers.drawn_batches.clear()
    strategy = MixupSL(TOY.upper(), link=link, device="cpu", seed=SEED, steps_per_round=2)
    app = toy_app(TOY, kind=Remembers, optimizer=adamw(0.01), repeatable_secrets=False)
    config = {"state-dir": str(folder), "link-via": mixer.address}
    grid = FakeGrid(app, TOY.clients, **config)
    start(strategy, grid, rounds, TOY)
    grid.wait()
    return dict(Remembers.drawn_batches)


def test_the_order_is_one_over_rounds_and_mixers_and_another_in_each_run(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """Every round is a process of its own; a mixer that is started again draws other masks."""
    batches_by_mixer = []
    for run in ("a", "a", "b"):
        mixer = start_mixer(certificate=None, key=None, seed_file=None)
        link = link_to(mixer, ca=None, run=run)
        shutil.rmtree(tmp_path / run, ignore_errors=True)  # the states of another start
        batches_by_mixer.append(batches_of(mixer, link, tmp_path, 2))
    for client_batches in batches_by_mixer[0].values():
        assert sorted(example for batch in client_batches for example in batch) == list(range(24))
    assert batches_by_mixer[0] == batches_by_mixer[1]
    assert all(
        batches_by_mixer[0][client] != batches_by_mixer[2][client] for client in range(TOY.clients)
    )


def test_law_4_nodes_with_a_mixer_of_their_own_and_repeatable_secrets_draw_the_runs_order(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    local = make("CutMixSL")
    local.fit(FOUR.make_clients(adamw(0.01)), 2)
    mixer = start_mixer(certificate=None, key=None)
    strategy = make("CutMixSL", link_to(mixer, ca=None))
    app = toy_app(FOUR, optimizer=adamw(0.01))
    config = {"state-dir": str(tmp_path), "link-via": mixer.address}
    grid = FakeGrid(app, FOUR.clients, **config)
    start(strategy, grid, 2)
    grid.wait()
    assert [row["loss"] for row in strategy.rows] == [row["loss"] for row in local.rows]
