"""The knowledge of a server besides its clients' messages, in `splitmix attack run` on texts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from torch import Tensor, nn

from flwr_splitmix.apps.language.attacked import AttackedTexts, attacked_texts
from flwr_splitmix.apps.language.texts import public_set
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.checkpoints import lower_of
from flwr_splitmix.storage import under
from tests.apps import language_app

Splitmix = Callable[..., Result]


def run_of(home: Path, strategy: str, **values: Any) -> Run:
    """Do a run of two clients."""
    values = {"task": "generation", "max_length": 64, "secret_tokens": 0, **values}
    run = language_app.fit(home, 2, strategy=strategy, **values).strategy.recorder.run
    assert run is not None
    return run


def weights(module: nn.Module | None) -> dict[str, Tensor]:
    assert module is not None
    return dict(module.named_parameters())


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether all weights of `one` are in `other`."""
    return all(name in other and torch.equal(w, other[name]) for name, w in one.items())


@pytest.mark.parametrize(
    ("strategy", "values"),
    [
        ("USplitFL", {}),
        ("USplitFL", {"lora_rank": 2}),
        ("USplitFL", {"task": "classification"}),
        ("SnDSL", {"aggregator": "FedAvg"}),
    ],
)
@pytest.mark.parametrize("client", [None, 1])
def test_a_server_has_the_ends_that_it_averages(
    strategy: str, values: dict[str, Any], client: int | None, home: Path
) -> None:
    """With those from before training, `vocabulary` reads 0.728 of the words, not all."""
    run = run_of(home, strategy, **values)
    system = attacked_texts(run, client)
    server_parts, checkpoint = system.case(1).view.knowledge.parts(), run.checkpoints.load()
    averaged = lower_of(checkpoint.tensors)
    assert same(under("head", averaged), weights(server_parts.head))
    assert not same(under("head", averaged), weights(system.base.head))
    assert same(under("trunk", checkpoint.tensors), weights(server_parts.trunk))
    assert server_parts.task == "generation"
    if system.config.task == "generation":
        assert same(under("tail", averaged), weights(server_parts.tail))
    else:
        assert same(weights(system.base.tail), weights(server_parts.tail))


def test_a_server_has_its_trained_trunk_and_no_ends_that_stay_with_clients(home: Path) -> None:
    """Not the trunk from before training."""
    run = run_of(home, "USplitSL")
    system = attacked_texts(run)
    server_parts = system.case(1).view.knowledge.parts()
    assert same(under("trunk", run.checkpoints.load().tensors), weights(server_parts.trunk))
    for part, base, trained in zip(
        (server_parts.head, server_parts.tail),
        (system.base.head, system.base.tail),
        (system.parts.head, system.parts.tail),
        strict=True,
    ):
        assert same(weights(part), weights(base))
        assert not same(weights(part), weights(trained))


def states_of(system: AttackedTexts, parts: str) -> list[Tensor]:
    """Return what a head makes of each public text."""
    head = getattr(system, parts).head
    return [head(ids[None])[0] for ids in public_set(system.config).texts]


def close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("strategy", ["MixGuard", "SnDSL"])
def test_a_server_has_the_public_texts_that_a_client_calibrated_on(
    strategy: str, splitmix: Splitmix, home: Path
) -> None:
    """`adaptive-online` needs them."""
    run = run_of(home, strategy, steps_per_round=2)
    system = attacked_texts(run, 1)
    releases = system.case(1).view.public_releases
    # Two batches of four in an epoch of calibration, and one beside each of two steps.
    assert len(releases) == 16
    assert {len(one.messages) for one in releases} == {3 if strategy == "MixGuard" else 1}
    for parts, as_sent in (("base", 8 * [True] + 8 * [False]), ("parts", 8 * [False] + 8 * [True])):
        part_states = states_of(system, parts)
        assert [
            any(close(one.states, states) for states in part_states) for one in releases
        ] == as_sent
    options = ("--victims", "1", "--client", "1")
    result = splitmix("attack", "run", run.id, "--attack", "adaptive-online", *options)
    assert result.exit_code == 0, result.stderr


def test_a_client_that_did_not_calibrate_shows_no_public_texts(
    splitmix: Splitmix, home: Path
) -> None:
    run = run_of(home, "SnDSL", calibration_epochs=0)
    assert attacked_texts(run).case(1).view.public_releases == []
    result = splitmix("attack", "run", run.id, "--attack", "adaptive-online")
    assert result.exit_code == 1
    assert "no public texts as clients that calibrate send them" in result.stderr
    assert "not given here" not in result.stderr


def test_public_texts_of_a_client_whose_node_keeps_its_state_are_said_to_be_missing(
    splitmix: Splitmix, home: Path
) -> None:
    """Otherwise attacks would silently read less."""
    run = run_of(home, "SnDSL", aggregator="FedAvg")
    shutil.rmtree(run.clients_dir)
    for client in ("0", "1"):  # whose averaged weights are here
        options = ("--victims", "1", "--client", client)
        result = splitmix("attack", "run", run.id, "--attack", "vocabulary", *options)
        assert result.exit_code == 0, result.stderr
        assert "to calibrate are not given here, because its node keeps" in result.stderr
    refused = splitmix("attack", "run", run.id, "--attack", "adaptive-online")
    assert (refused.exit_code, "are not given here" in refused.stderr) == (1, True)


@pytest.mark.parametrize("strategy", ["USplitFL", "USplitSL"])
def test_a_client_that_is_not_in_a_run_is_told_who_is(
    strategy: str, splitmix: Splitmix, home: Path
) -> None:
    """Leaving out --client does not help, as not all clients have the same texts."""
    run = run_of(home, strategy)
    options = ("--attack", "vocabulary", "--client", "7")
    result = splitmix("attack", "run", run.id, *options)
    assert result.exit_code == 1
    assert result.stderr.endswith(
        f"run {run.id}: client 7 finished no round; --client names the client whose data are "
        "attacked: 0 and 1\n"
    )
