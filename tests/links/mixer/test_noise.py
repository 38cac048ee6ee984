"""Noise and its ledger at a mixer: the same run and the same epsilon as without a mixer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.clients import PrivacyBudget
from flwr_splitmix.events import StepDone
from flwr_splitmix.links import LinkError, MixerLink
from flwr_splitmix.links.mixer.channel import MixerChannel
from flwr_splitmix.mixer_process.process import MixerServer
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy import GaussianNoise, RunAccount
from flwr_splitmix.testing.agreement import check_same_results, read_results
from tests.links.fake_grid import OneAtATime
from tests.links.kept import results
from tests.links.mixer.noisy import (
    DELTA,
    EVERYWHERE,
    KEPT,
    KINDS,
    QUIET,
    Leaves,
    LeavesAtOnce,
    OneEmpty,
    alone,
    direct,
    elsewhere,
    epsilons,
    new_run,
    summary_of,
    through,
)

Start = Callable[..., MixerServer]
LinkTo = Callable[..., MixerLink]


@pytest.mark.parametrize("noise", [EVERYWHERE, KEPT], ids=["everywhere", "kept"])
@pytest.mark.parametrize("kind", KINDS)
def test_law_4_a_third_party_changes_no_bit_of_a_run_with_noise(
    kind: str, noise: GaussianNoise, start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    local_run, mixer_run = new_run(tmp_path, "local"), new_run(tmp_path, "third-party")
    options: dict[str, Any] = {"secrets": True, "noise": noise}
    local = alone(kind, run=local_run, **options)
    nodes = tmp_path / "nodes"
    mixed = through(link_to(start_mixer(), run=mixer_run.id), nodes, kind, run=mixer_run, **options)
    check_same_results(read_results(local_run), results(mixer_run, nodes))
    assert epsilons(local) == epsilons(mixed)
    # Noise is really added: without seeded secrets, the weights differ.
    other = alone(kind, noise=noise)
    weights = [strategy.upper.state()[0] for strategy in (local, other)]
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("lost", [False, True], ids=["all stay", "one is lost"])
@pytest.mark.parametrize("relation", ["replace", "add-remove"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_mixers_epsilon_is_that_of_a_ledger_that_sees_sums(
    kind: str, relation: str, lost: bool, start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "clients": Leaves if lost else OneAtATime, "k": 4, "rounds": 4, "relation": relation
    }  # fmt: skip
    local = direct(tmp_path / "direct", kind, **options)
    mixed = through(link_to(start_mixer()), tmp_path / "nodes", kind, **options)
    failed = [row["clients_failed"] for row in mixed.rows]
    assert failed == [row["clients_failed"] for row in local.rows]
    assert failed == [0, int(lost), 0, 0]
    assert epsilons(mixed) == epsilons(local)
    assert all(0 < epsilon < math.inf for epsilon in epsilons(mixed))
    assert epsilons(mixed) == sorted(epsilons(mixed))
    # Summing helps: if each upload is seen alone, epsilon is larger.
    single = direct(tmp_path / "single", kind, trusted_mixer=False, **options)
    assert epsilons(single)[-1] > epsilons(mixed)[-1]
    # The report is that of the ledger that sees sums, but names no client.
    assert local.ledger is not None
    assert elsewhere(mixed).report().split(": ", 1)[1] == local.ledger.report().split(": ", 1)[1]


@pytest.mark.parametrize("clamp", [True, False])
def test_patches_that_are_rounded_on_the_wire_cost_what_they_cost_exact(
    clamp: bool, start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """Each is seen alone, and labels, which are added up, are not rounded."""
    noise = replace(KEPT, clamp_labels=clamp)
    mixer = start_mixer()
    spent = [
        epsilons(through(link_to(mixer, wire_dtype=wire), tmp_path / wire, "DPCutMixSL",
                         noise=noise))
        for wire in ("keep", "int8")
    ]  # fmt: skip
    assert spent[0] == spent[1]


class Sources(Observer):
    """Records who was mixed with whom."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []

    def on_step(self, event: StepDone) -> None:
        assert event.mixed is not None
        self.groups += [[m.client for m in source.members] for source in event.mixed.sources]


class Targets(Observer):
    """Records the sum of each sample's soft labels."""

    def __init__(self) -> None:
        self.sums: list[float] = []

    def on_step(self, event: StepDone) -> None:
        assert event.mixed is not None
        self.sums += event.mixed.targets.sum(1).tolist()


def test_labels_without_noise_are_whole_where_a_member_is_missing(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    observer = Targets()
    through(
        link_to(start_mixer()), tmp_path / "nodes", "DPMixSL", 1, LeavesAtOnce, k=4,
        steps_per_round=1, noise=replace(KEPT, sigma_y=0.0), observers=[observer],
    )  # fmt: skip
    assert observer.sums == pytest.approx([1.0] * len(observer.sums))
    assert observer.sums


def test_an_upload_that_is_in_no_mixture_costs_nothing(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """One of two pairs loses a member: the server does not see the other member's upload."""
    observer = Sources()
    options: dict[str, Any] = {"clients": LeavesAtOnce, "rounds": 1, "steps_per_round": 1}
    local = alone("DPCutMixSL", observers=[observer], **options)
    (single,) = (group for group in observer.groups if len(group) == 1)
    (pair,) = (group for group in observer.groups if len(group) == 2)
    assert local.ledger is not None
    spent = local.ledger.epsilons
    assert spent[single[0]] > max(spent[client] for client in pair)  # there it is seen alone
    mixed = through(link_to(start_mixer()), tmp_path, "DPCutMixSL", **options)
    assert epsilons(mixed) == [max(spent[client] for client in pair)]


def test_a_round_that_is_drawn_again_is_charged_once(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """A mixer that begins it with clients of which too few have data asks for nothing."""
    toy = replace(QUIET, clients=6)  # four of which a round draws
    options: dict[str, Any] = {
        "clients": OneEmpty, "toy": toy, "fraction_train": 0.7, "min_nodes": 4
    }  # fmt: skip
    local = direct(tmp_path / "direct", "DPCutMixSL", **options)
    mixed = through(link_to(start_mixer()), tmp_path / "nodes", "DPCutMixSL", **options)
    assert epsilons(mixed) == pytest.approx(epsilons(local), rel=1e-12)


@pytest.mark.parametrize(("share", "trained"), [(1.5, 1), (0.1, 0)])
def test_a_run_whose_budgets_are_spent_ends_as_one_without_a_mixer(
    share: float, trained: int, start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """The server learns how many budgets are spent, but not whose."""
    single = alone("DPMixSL", 1, trusted_mixer=False).ledger
    assert single is not None
    budget = PrivacyBudget(delta=DELTA, max_epsilon=share * max(single.epsilons.values()))
    run = new_run(tmp_path, "spent")
    link = link_to(start_mixer(), run=run.id)
    mixed = through(link, tmp_path / "nodes", "DPMixSL", 9, run=run, privacy=budget)
    assert mixed.stop_reason.startswith("the privacy budget of ")
    assert mixed.stop_reason.endswith(" clients is spent")
    assert trained < len(run.rows) < 9
    assert run.rows[-1]["steps"] < 3
    # The smaller budget does not allow a single upload, so there is no mixture.
    assert bool(trained) == (epsilons(mixed)[-1] > 0)
    assert summary_of(run)["epsilon"] == epsilons(mixed)[-1]


def test_noise_that_bounds_nothing_is_said_to_have_no_epsilon(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    noise = GaussianNoise(sigma_s=9.0, sigma_y=0.0)
    run = new_run(tmp_path, "unbounded")
    link = link_to(start_mixer(), run=run.id)
    mixed = through(link, tmp_path / "nodes", "DPCutMixSL", 1, run=run, noise=noise)
    assert epsilons(mixed) == [math.inf]
    assert "no epsilon: no noise on the labels (sigma_y = 0)" in elsewhere(mixed).report()
    assert summary_of(run)["epsilon"] == "inf"


def test_the_servers_record_of_mixtures_with_noise_can_be_read(
    start_mixer: Start, link_to: LinkTo, tmp_path: Path
) -> None:
    """Their labels may have any value, as they include noise and are not clamped."""
    directory = tmp_path / "trace"
    recorder = Recorder(directory=directory)
    through(link_to(start_mixer()), tmp_path, "DPMixSL", 1, observers=[recorder])
    steps = [step for step in Recorder(directory=directory).trace.steps() if isinstance(step, Step)]
    assert len(steps) == 3
    labels = torch.cat(
        [t for s in steps for u in s.uploads.values() for t in u.labels if t is not None]
    )
    assert labels.min() < 0
    assert labels.max() > 1


def scalars(value: Any) -> list[Any]:
    """Return all values but tensors in nested lists and dictionaries, including keys."""
    if isinstance(value, dict):
        return [s for name, each in value.items() for s in (name, *scalars(each))]
    if isinstance(value, (list, tuple)):
        return [s for each in value for s in scalars(each)]
    return [] if isinstance(value, torch.Tensor) else [value]


class Ratios(Observer):
    """Records all mixing ratios."""

    def __init__(self) -> None:
        self.of_members: set[float] = set()

    def on_step(self, event: StepDone) -> None:
        assert event.mixed is not None
        for source in event.mixed.sources:
            self.of_members |= {member.share.lam for member in source.members}


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_receives_one_number_and_words_about_nobody(
    kind: str, start_mixer: Start, link_to: LinkTo, tmp_path: Path, monkeypatch: Any
) -> None:
    """That is checked on the wire itself, inside TLS, and in all that the run has stored."""
    ratios = Ratios()
    local = alone(kind, observers=[ratios])
    assert local.ledger is not None
    of_clients = set(local.ledger.epsilons.values())
    assert len(of_clients) > 1
    assert len(ratios.of_members) > 2
    calls: list[tuple[str, dict[str, Any]]] = []
    ask = MixerChannel._ask

    def listen(self: MixerChannel, name: str, arguments: Any) -> dict[str, Any]:
        reply = ask(self, name, arguments)
        calls.append((name, reply))
        return reply

    monkeypatch.setattr(MixerChannel, "_ask", listen)
    run = new_run(tmp_path, "seen")
    mixed = through(link_to(start_mixer(), run=run.id), tmp_path / "nodes", kind, run=run)
    finished = [reply for name, reply in calls if name == "finish"]
    assert len(finished) == 3
    for number, reply in enumerate(finished, start=1):
        assert reply.keys() == {"failures", "account"}
        account = reply["account"]
        assert account.keys() == {"epsilon", "unbounded-because", "outside", "rounds"}
        assert account["rounds"] == list(range(1, number + 1))
    numbers = {value for _, reply in calls for value in scalars(reply) if type(value) is float}
    assert numbers == set(epsilons(mixed))
    assert numbers & of_clients == {max(of_clients)}
    assert not numbers & (ratios.of_members - {0.0, 1.0})
    for name, reply in calls:
        if name == "step":
            assert reply.keys() == {"mixtures", "failures", "spent"}
            for mixture in reply["mixtures"].values():
                assert mixture.keys() == {"smashed", "labels"}
    assert all("epsilon_by_client" not in row for row in run.rows)
    assert "client 0" not in elsewhere(mixed).report()
    assert run.summary is not None
    assert run.summary["epsilon_covers"].startswith("mixtures of clients' uploads")
    entry = run.checkpoints.load().meta["observers"][0]
    assert entry["kind"] == "LedgerElsewhere"
    assert not set(scalars(entry)) & (of_clients - {max(of_clients)})


@pytest.mark.parametrize(
    "account",
    [
        None,
        {},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": 1},
        {"unbounded-because": ["because"]},
        {"unbounded-because": ["no clipping of the smashed data"]},
        {"outside": "gradients sent to clients"},
        {"rounds": [0]},
        {"rounds": [True]},
        {"epsilon-of-0": 1.0},
    ],
    ids=str,
)
def test_a_mixer_whose_account_is_none_ends_the_run(
    account: dict[str, Any] | None, start_mixer: Start, link_to: LinkTo, tmp_path: Path,
    monkeypatch: Any,
) -> None:  # fmt: skip
    right = {"epsilon": 1.0, "unbounded-because": [], "outside": [], "rounds": [1]}
    wrong: Any = account if not account else {**right, **account}
    monkeypatch.setattr(RunAccount, "to_plain", lambda self: wrong)
    message = "no account" if account is None else "the mixer's account of privacy cannot be read"
    with pytest.raises(LinkError, match=message):
        through(link_to(start_mixer()), tmp_path, "DPCutMixSL", 1, steps_per_round=1)
