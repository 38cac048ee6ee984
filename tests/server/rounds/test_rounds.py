"""The loop of rounds: who takes part, who fails, what repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.links import LinkError
from flwr_splitmix.mixers import PatchCutMix
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import PSL, SFL, CutMixSL, MixupSL, SplitStrategy
from flwr_splitmix.testing.toy import Toy, sgd
from tests.laws.makers import NAMES, maker, toy_for
from tests.observers.kept_events import KeptEvents


class Faulty(SplitClient):
    """Fails, or sends nonsense, at one place of the run."""

    at: tuple[int, int] = (-1, -1)
    nonsense = False

    def run(self, method: str, arguments: Any) -> dict[str, Any]:
        if (self.order.server_round, arguments["number"]) != self.at:
            return super().run(method, arguments)
        if not self.nonsense:
            raise RuntimeError("the battery is empty")
        reply = super().run(method, arguments)
        return {**reply, "smashed": [torch.full_like(t, float("nan")) for t in reply["smashed"]]}


def run(
    kind: Any, toy: Toy, rounds: int = 1, faulty: dict[int, tuple[int, int]] | None = None,
    nonsense: bool = False, lr: float = 0.1, **options: Any,
) -> tuple[Any, KeptEvents, Any]:  # fmt: skip
    observer = KeptEvents()
    options = {"optimizer": sgd(lr), "schedule": constant, "device": "cpu", **options}
    strategy = kind(toy.upper(), observers=[observer], **options)
    clients = toy.make_clients(sgd(lr), kind=Faulty, shares=strategy.mixer.shares)
    for client, place in (faulty or {}).items():
        clients[client].at = place  # type: ignore[attr-defined]
        clients[client].nonsense = nonsense  # type: ignore[attr-defined]
    strategy.fit(clients, rounds)
    return strategy, observer, clients


def weights(strategy: Any, clients: Any) -> dict[str, Tensor]:
    tensors = {f"upper {n}": t for n, t in strategy.upper.module.state_dict().items()}
    for index, client in enumerate(clients):
        tensors |= {f"{index} {n}": t for n, t in client.segment.state_dict().items()}
    return tensors


@pytest.mark.parametrize("nonsense", [False, True], ids=["raises", "sends NaN"])
def test_a_client_that_fails_mid_round_costs_its_own_contribution(nonsense: bool) -> None:
    strategy, observer, clients = run(
        PSL, Toy(clients=3), 2, {1: (1, 1)}, nonsense, server_update="sum"
    )
    assert [len(step.uploads) for step in observer.steps] == [3, 2, 2, 3, 3, 3]
    assert [event.clients_alive for event in observer.rounds] == [2, 3]
    reason = "NaN or infinite" if nonsense else "RuntimeError; the log says more"
    assert reason in observer.rounds[0].failures[1]
    assert observer.rounds[1].failures == {}
    assert all(t.isfinite().all() for t in weights(strategy, clients).values())


def test_the_group_of_a_client_that_fails_goes_on_with_the_patches_that_came() -> None:
    _, observer, _ = run(CutMixSL, Toy(clients=4), 1, {1: (1, 1)}, k=4, alpha=None, min_nodes=2)
    before, during, after = observer.steps
    assert before.mixed.sources[0].ratio == 1
    (source,) = during.mixed.sources
    assert sorted(m.client for m in source.members) == [0, 2, 3]
    assert 0 < source.ratio < 1
    torch.testing.assert_close(during.mixed.targets.sum(1), torch.ones(4, dtype=torch.float64))
    lost = next(m for m in during.plan.passes[0][0].members if m.client == 1)
    at = lost.share.positions(4)
    assert not during.mixed.smashed[:, at].any()
    assert after.mixed.sources[0].ratio == 1  # three clients, planned anew


def test_the_survivor_without_a_patch_skips_the_step() -> None:
    """Two clients, one of which keeps nothing in the step in which the other fails."""
    toy = Toy(clients=2)
    options: dict[str, Any] = {"alpha": 0.01, "min_nodes": 1}
    _, observer, _ = run(CutMixSL, toy, **options)
    empty, number = next(
        (m.client, step.number)
        for step in observer.steps
        for m in step.plan.passes[0][0].members
        if m.share.lam == 0
    )
    _, observer, _ = run(CutMixSL, toy, 1, {1 - empty: (1, number)}, **options)
    assert [event.clients_alive for event in observer.rounds] == [1]
    assert [step.number for step in observer.steps] == [n for n in range(3) if n != number]


def test_below_min_nodes_the_round_ends_with_the_reasons() -> None:
    with pytest.raises(
        LinkError,
        match=r"round 2: 1 client is left, min_nodes is 2: client 0: RuntimeError; the log says",
    ):
        run(PSL, Toy(clients=2), 3, {0: (2, 1)}, min_nodes=2)
    with pytest.raises(LinkError, match="there are 2 clients, min_nodes is 3"):
        run(PSL, Toy(clients=2), min_nodes=3)


def test_a_round_too_small_for_its_mixer_names_the_mixer_not_an_option() -> None:
    class Crowd(PatchCutMix):
        min_members = 5

    with pytest.raises(LinkError, match=r"2 clients, Crowd needs at least 5 \(its min_members\)"):
        run(SplitStrategy, Toy(clients=2), mixer=Crowd())
    with pytest.raises(
        LinkError, match=r"1 client is left, PatchCutMix needs at least 2 .*: client"
    ):
        run(CutMixSL, Toy(clients=2), 3, {0: (2, 1)})


def test_clients_that_make_other_shapes_are_left_out() -> None:
    toy, observer = Toy(clients=3), KeptEvents()
    clients = [*toy.make_clients(), *Toy(clients=1, patches=7).make_clients()]
    strategy = PSL(toy.upper(), device="cpu", observers=[observer])
    strategy.fit(clients, 1)
    assert list(observer.rounds[0].failures) == [3]


@pytest.mark.parametrize("name", NAMES)
def test_two_identical_runs_are_bit_identical(name: str) -> None:
    toy = toy_for(name, clients=4)
    results = []
    for noise in (0, 1):
        torch.manual_seed(noise)  # the caller's generator has no part in it
        strategy, observer, clients = run(maker(name), toy, 2, fraction_train=0.75, seed=4)
        results.append((weights(strategy, clients), [float(s.result.loss) for s in observer.steps]))
    (first, losses), (second, again) = results
    assert losses == again
    assert all(torch.equal(t, second[name]) for name, t in first.items())


def test_another_seed_is_another_run() -> None:
    losses = {
        tuple(float(s.result.loss) for s in run(PSL, Toy(clients=2), seed=seed)[1].steps)
        for seed in range(3)
    }
    assert len(losses) == 3


def test_training_learns() -> None:
    for name in NAMES:
        if name.endswith("SFL"):  # learns as the one without averaging does
            continue
        toy = toy_for(name, clients=4, batch=4, dropout=0.0)
        hard = name == "ShuffledCutMixSL"  # permuted and mixed: many small steps
        rounds, lr = (40, 0.1) if hard else (16, 0.3)
        _, observer, _ = run(maker(name), toy, rounds, server_update="sum", lr=lr)
        losses = [float(step.result.loss) for step in observer.steps]
        assert sum(losses[-15:]) < 0.95 * sum(losses[:15]), name


def test_a_fraction_of_the_clients_takes_part_and_all_in_the_long_run() -> None:
    _, observer, _ = run(PSL, Toy(clients=6), 12, fraction_train=0.5)
    sampled = [tuple(sorted(step.uploads)) for step in observer.steps if step.number == 0]
    assert all(len(clients) == 3 for clients in sampled)
    assert {client for clients in sampled for client in clients} == set(range(6))
    assert len(set(sampled)) > 3


def test_a_step_costs_one_exchange_and_a_round_one_more() -> None:
    _, observer, _ = run(CutMixSL, Toy(clients=4), 2, steps_per_round=3)
    for client in range(4):
        down = [e for e in observer.exchanges if (e.client, e.direction) == (client, "down")]
        assert [(e.server_round, e.payload["number"]) for e in down] == [
            (r, n) for r in (1, 2) for n in range(4)
        ]
        assert [e.payload["plan"] is None for e in down] == [False, False, False, True] * 2
        assert [e.payload["gradient"] is None for e in down] == [True, False, False, False] * 2
        assert [e.payload["progress"] for e in down[:4]] == [0, 1 / 3, 2 / 3, 1]


def test_steps_follow_from_batches_and_epochs() -> None:
    toy = Toy(clients=2, examples=(12, 20))  # 3 and 5 full batches
    assert run(PSL, toy)[1].rounds[0].steps == 4
    assert run(PSL, toy, epochs_per_round=3)[1].rounds[0].steps == 12
    assert run(PSL, toy, steps_per_round=2)[1].rounds[0].steps == 2


def test_groups_of_an_epoch_change_with_the_epoch() -> None:
    _, observer, _ = run(CutMixSL, Toy(clients=8), regroup="epoch", epochs_per_round=2)
    grouped = [
        frozenset(frozenset(m.client for m in g.members) for g in step.plan.passes[0])
        for step in observer.steps
    ]
    assert len(grouped) == 6
    assert len(set(grouped[:3])) == len(set(grouped[3:])) == 1
    assert grouped[0] != grouped[3]


def test_a_client_left_over_and_small_data_are_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        run(CutMixSL, Toy(clients=3, examples=(12, 12, 3)), 3)
    lines = [record.getMessage() for record in caplog.records]
    assert ["left over" in line for line in lines].count(True) == 1
    assert (
        lines.count("client 2 has less than one batch of 4: examples are drawn with replacement")
        == 1
    )


def test_a_client_left_over_is_said_before_it_sends_anything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        run(CutMixSL, Toy(clients=3), 2)
    lines = [record.getMessage() for record in caplog.records]
    (early,) = (line for line in lines if "with leftover='skip' it sends nothing" in line)
    assert early.startswith("k is 2 for 3 clients: in each step one is left over and sends all")
    assert lines.index(early) < min(n for n, line in enumerate(lines) if "round 1" in line)


@pytest.mark.parametrize(("k", "clients"), [(2, 3), (3, 4)])
@pytest.mark.parametrize("strategy", [CutMixSL, MixupSL], ids=lambda kind: kind.__name__)
def test_no_upload_is_unmixed_if_clients_left_over_are_skipped(
    strategy: type[SplitStrategy], k: int, clients: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        _, observer, _ = run(strategy, Toy(clients=clients), 2, k=k, leftover="skip")
    assert {len(step.uploads) for step in observer.steps} == {clients - 1}
    assert not any(step.plan.unmixed for step in observer.steps)
    assert not any("left over" in record.getMessage() for record in caplog.records)
    assert {client for step in observer.steps for client in step.uploads} == {*range(clients)}


def test_who_is_skipped_for_a_whole_round_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        run(CutMixSL, Toy(clients=3), 1, leftover="skip", regroup="epoch")
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "was left over in every step of a round (leftover='skip'), so nothing was" in warning
    assert "regroup='step', or more steps in a round" in warning


def test_a_client_that_counts_less_in_the_length_of_a_round_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also where nothing is averaged: 2 steps, where the mean is 83."""
    run(PSL, Toy(clients=3, examples=(4, 4, 500)), 2)
    lines = [record.getMessage() for record in caplog.records]
    warning = (
        "client 2 has far more examples than most: 400 of each client's count for the length of"
    )
    assert [line.startswith(warning) for line in lines].count(True) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"fraction_train": 0.0}, "fraction_train is 0.0; it must be above 0, at most 1"),
        ({"fraction_train": 1.1}, "fraction_train is 1.1"),
        ({"evaluation": "central"}, "it must be one of none, federated, benchmark"),
        ({"evaluate_every": 0}, "evaluate_every is 0; it must be at least 1"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"steps_per_round": 0}, "steps_per_round is 0"),
        ({"epochs_per_round": 0}, "epochs_per_round is 0"),
        ({"min_nodes": 0}, "min_nodes is 0"),
        ({"min_nodes": 2.0}, "min_nodes is 2.0; it must be a whole number"),
        ({"steps_per_round": 1.5}, "steps_per_round is 1.5; it must be a whole number"),
        ({"evaluate_every": True}, "evaluate_every is True; it must be a whole number"),
        ({"seed": None}, "seed is None; it must be a whole number"),
        ({"seed": 1.0}, "seed is 1.0; it must be a whole number"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PSL(Toy().upper(), device="cpu", **options)


def test_numbers_of_numpy_are_whole_numbers() -> None:
    ours, theirs = (
        [
            step.loss
            for step in run(CutMixSL, Toy(), 1, seed=kind(3), steps_per_round=kind(2))[1].steps
        ]
        for kind in (int, np.int64)
    )
    assert ours == theirs


@pytest.mark.parametrize("rounds", [0, -2])
def test_a_run_has_at_least_one_round(rounds: int) -> None:
    with pytest.raises(ValueError, match=f"num_rounds is {rounds}; it must be at least 1"):
        run(CutMixSL, Toy(), rounds)


def test_a_fraction_of_a_round_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_rounds is 2\.5; it must be a whole number"):
        run(CutMixSL, Toy(), 2.5)  # type: ignore[arg-type]


def test_a_second_fit_has_rows_of_its_own() -> None:
    toy = Toy()
    strategy = PSL(toy.upper(), device="cpu", steps_per_round=2)
    for rounds in (3, 2):
        strategy.fit(toy.make_clients(sgd(0.1)), rounds)
        rows = strategy.rows
        assert [row["round"] for row in rows] == list(range(1, rounds + 1))


def test_a_lower_segment_that_detaches_is_an_error_not_untrained() -> None:
    class Detached(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).detach()

    data: Any = TensorDataset(torch.randn(8, 4, 3), torch.arange(8) % 2)
    upper = nn.Sequential(nn.Flatten(), nn.Linear(4 * 3, 2))
    frozen = Detached(3, 3).requires_grad_(False)
    PSL(upper, num_classes=2, device="cpu").fit([SplitClient(frozen, data, batch_size=4)], 1)
    partly, whole = Detached(3, 3), Detached(3, 3)
    partly.bias.requires_grad_(False)
    for lower in (partly, whole):
        with pytest.raises(LinkError, match="weights to train, but its output has no gradient"):
            PSL(upper, num_classes=2, device="cpu").fit([SplitClient(lower, data)], 1)


def test_fit_without_clients_says_so() -> None:
    with pytest.raises(LinkError, match="there are 0 clients, PatchCutMix needs at least 2"):
        CutMixSL(Toy().upper(), device="cpu").fit([], 1)


class Poisoned(SplitClient):
    """Trains like any other, and returns NaN in its lower segment."""

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        arrays, metrics = super().release()
        return {name: t * float("nan") for name, t in arrays.items()}, metrics


def test_a_poisoned_lower_segment_is_not_averaged() -> None:
    toy, observer = Toy(clients=3), KeptEvents()
    clients = list(toy.make_clients(sgd(0.1)))
    clients[0] = toy.make_clients(sgd(0.1), kind=Poisoned)[0]
    strategy = SFL(toy.upper(), device="cpu", observers=[observer])
    result = strategy.fit(clients, 2)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    reason = {0: "returned weights with NaN or infinite numbers"}
    assert [event.failures for event in observer.rounds] == [reason, reason]


def test_a_client_that_is_alone_since_another_dropped_out_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Client 3 drops out in the first of three steps: in the two that are left, one is alone.
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        run(CutMixSL, Toy(clients=4), rounds=2, faulty={3: (1, 0)})
    warnings = [r.getMessage() for r in caplog.records if "left over" in r.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith("round 1: ")
    assert "in 2 uploads in all" in warnings[0]
