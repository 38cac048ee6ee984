"""Charges of runs that are interrupted and resumed."""

from __future__ import annotations

import errno
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.clients import ClientError
from flwr_splitmix.links import Clients, LinkError
from flwr_splitmix.mixers import Noisy, NoMixing
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.strategies import (
    DPSL,
    SplitStrategy,
)
from flwr_splitmix.testing.resume import InterruptionError, StopIn
from flwr_splitmix.testing.toy import Toy, sgd
from tests.strategies.noise.honest import (
    E_S,
    E_Y,
    FORMS,
    NOISE,
    TOY,
    Outcome,
    Prepare,
    Sent,
    check_order,
    epsilon,
    limits,
    new_run,
    noised,
    run,
    truth,
)


def rounds_begun(run: Run) -> dict[int, int]:
    return dict(Counter(begun.round for begun in run.begun))


def interrupted(
    kind: Any, toy: Toy, home: Run, rounds: int, *, stop: tuple[int, int], releases: Sent,
    prepare: Prepare | None = None, **options: Any,
) -> Outcome:  # fmt: skip
    """Stop a run in the midst of a round, and go on with new clients from what is on disk."""
    with pytest.raises(InterruptionError):
        run(kind, toy, rounds, run=home, releases=releases, watch=[StopIn(*stop)], **options)
    again = Run.open(home.id, home=home.path.parent.parent)
    return run(kind, toy, rounds, run=again, releases=releases, prepare=prepare, **options)


@pytest.mark.parametrize("form", ["DPSL", "DPMixSL", "DPCutMixSL", "k-times"])
def test_a_resumed_run_whose_secrets_repeat_has_the_same_ledgers(form: str, tmp_path: Path) -> None:
    kind, form_options = FORMS[form]
    through = run(noised(kind), rounds=4, repeatable=True, run=new_run(tmp_path), **form_options)
    resumed = interrupted(
        noised(kind),
        TOY,
        new_run(tmp_path),
        4,
        stop=(3, 1),
        releases={},
        repeatable=True,
        **form_options,
    )
    for client in range(4):
        assert resumed.slopes(client) == through.slopes(client)
        assert resumed.by_client(client) == through.by_client(client)
        assert resumed.said(client) == through.said(client)
    assert resumed.strategy.rows[-1]["epsilon"] == max(
        through.by_server(client) for client in range(4)
    )


@pytest.mark.parametrize("form", ["DPSL", "DPMixSL", "DPCutMixSL", "k-times"])
@pytest.mark.parametrize(
    ("checkpoint_every", "lost"), [(1, 1), (2, 1), (3, 2)], ids=["newest", "newest of 2", "older"]
)
def test_a_round_that_is_repeated_with_fresh_noise_is_charged_again(
    form: str, checkpoint_every: int, lost: int, tmp_path: Path
) -> None:
    """A process that is killed between checkpoints repeats every round since the newest one."""
    kind, form_options = FORMS[form]
    home, releases = new_run(tmp_path), Sent()
    options = {**form_options, "steps_per_round": 2, "checkpoint_every": checkpoint_every}
    killed = partial(noised(kind), **options)
    with pytest.raises(InterruptionError):
        run(_Killed.of(killed), TOY, 6, run=home, releases=releases, watch=[StopIn(5, 1)])
    assert rounds_begun(home) == dict.fromkeys(range(1, 6), 1)
    resumed = run(killed, TOY, 6, run=Run.open(home.id, home=tmp_path), releases=releases)
    begun = rounds_begun(home)
    assert [begun[number] for number in range(1, 7)] == [1] * (5 - lost) + [2] * lost + [1]
    through = run(noised(kind), rounds=6, run=new_run(tmp_path), **options)
    for client in range(4):
        assert resumed.slopes(client) > through.slopes(client)
    check_order(resumed, range(4))


class _Killed:
    """Makes a strategy whose newest rounds are lost with the power: the disk had not got them."""

    @staticmethod
    def of(kind: Any) -> Any:
        def make(*arguments: Any, **options: Any) -> SplitStrategy:
            strategy: SplitStrategy = kind(*arguments, **options)
            run = strategy.recorder.run
            assert run is not None

            def lose() -> None:
                for file in run.checkpoints.path.glob("between-*"):
                    file.unlink()

            strategy.recorder.checkpoints.save_unsaved = lose  # type: ignore[method-assign]
            return strategy

        return make


@pytest.mark.parametrize("form", ["DPMixSL", "DPCutMixSL", "k-times"])
@pytest.mark.parametrize("seed", range(3))
def test_a_round_repeated_with_other_clients_has_other_masks_and_is_covered(
    form: str, seed: int, tmp_path: Path
) -> None:
    """Who was there the first time may be missing the second: then groups and ratios differ."""

    def break_one(clients: Sequence[Any]) -> None:
        clients[seed].fails_at = (2, 0)

    kind, form_options = FORMS[form]
    outcome = interrupted(
        noised(kind), replace(TOY, clients=5), new_run(tmp_path), 3, stop=(2, 2), releases={},
        prepare=break_one, seed=seed, **form_options,
    )  # fmt: skip
    assert seed in outcome.seen.rounds[0].failures
    check_order(outcome, [client for client in range(5) if client != seed])


def test_two_interruptions_of_one_round_are_charged_twice(tmp_path: Path) -> None:
    home, releases = new_run(tmp_path), Sent()
    for _ in range(2):
        with pytest.raises(InterruptionError):
            run(noised(DPSL), rounds=2, run=home, releases=releases, watch=[StopIn(2, 2)])
        home = Run.open(home.id, home=tmp_path)
    outcome = run(noised(DPSL), rounds=2, run=home, releases=releases)
    assert rounds_begun(home) == {1: 1, 2: 3}
    for client in range(4):
        assert outcome.slopes(client) == pytest.approx((1 + 3) * (E_S + E_Y))
        assert truth(releases, client) == pytest.approx(outcome.by_client(client))
    check_order(outcome, range(4))


@pytest.mark.parametrize("form", ["DPSL", "DPMixSL", "DPCutMixSL", "k-times"])
@pytest.mark.parametrize(("first", "again"), [(9, 1), (4, 2), (2, 5)])
def test_a_round_that_was_longer_than_its_repetition_is_charged_in_whole(
    form: str, first: int, again: int, tmp_path: Path
) -> None:
    """As when clients with less data take part the second time; passes have three batches."""
    kind, form_options = FORMS[form]
    home, releases = new_run(tmp_path), Sent()
    options: dict[str, Any] = {**form_options, "rounds": 2, "releases": releases}
    for _ in range(2):
        stop = [StopIn(1, first - 1)]
        with pytest.raises(InterruptionError):
            run(noised(kind), run=home, watch=stop, steps_per_round=first, **options)
        home = Run.open(home.id, home=tmp_path)
    assert [begun.steps for begun in home.begun] == [first, first]
    outcome = run(noised(kind), run=home, steps_per_round=again, **options)
    check_order(outcome, range(4))
    if form == "DPSL":  # no masks, which a ledger does not know, hide anything of the first times
        for client in range(4):
            assert outcome.by_client(client) == pytest.approx(truth(releases, client))


@pytest.mark.parametrize("limit", [2.5, 5.5, 7.5])
def test_a_budget_holds_over_longer_rounds_that_were_interrupted(
    limit: float, tmp_path: Path
) -> None:
    home, releases, budgets = new_run(tmp_path), Sent(), limits(*[epsilon(limit * (E_S + E_Y))] * 4)
    options: dict[str, Any] = {"rounds": 9, "releases": releases, "budgets": budgets}
    for last in (1, 7):
        stop = [StopIn(1, last)]
        with suppress(InterruptionError):  # what is lost may have been the budget, which ends a run
            run(noised(DPSL), run=home, watch=stop, steps_per_round=9, **options)
        home = Run.open(home.id, home=tmp_path)
    outcome = run(noised(DPSL), run=home, steps_per_round=1, **options)
    for client, budget in budgets.items():
        assert budget.max_epsilon is not None
        spent = outcome.clients[client].epsilon
        if spent is None:  # the run has ended before
            continue
        assert truth(releases, client) <= spent * (1 + 1e-9) <= budget.max_epsilon * (1 + 2e-9)


def test_a_run_with_rounds_of_unknown_length_has_no_epsilon_once_it_was_interrupted(
    tmp_path: Path,
) -> None:
    home = new_run(tmp_path)
    with pytest.raises(InterruptionError):
        run(noised(DPSL), run=home, watch=[StopIn(1, 1)])
    file = home.path / "begun.jsonl"
    (line,) = file.read_text().splitlines()
    file.write_text(json.dumps({**json.loads(line), "steps": None}) + "\n")
    outcome = run(noised(DPSL), run=Run.open(home.id, home=tmp_path))
    for client in range(4):
        assert outcome.by_client(client) == outcome.by_server(client) == math.inf
        assert "length, mixer or noise is not known" in outcome.said(client)


class Silent(DPSL):
    """Does not say how many steps a round has."""

    def agree(self, clients: Clients) -> None:  # type: ignore[override]
        super().agree(clients)


def test_a_strategy_that_does_not_say_how_many_steps_a_round_has_is_warned_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home, warning = new_run(tmp_path), "does not give a round's number of steps"
    with pytest.raises(InterruptionError):
        run(noised(Silent), rounds=3, run=home, watch=[StopIn(3, 1)])
    assert caplog.text.count(warning) == 1
    outcome = run(noised(Silent), rounds=3, run=Run.open(home.id, home=tmp_path))
    assert outcome.by_client(0) == outcome.by_server(0) == math.inf
    caplog.clear()
    run(noised(DPSL))
    assert warning not in caplog.text


def test_a_run_that_goes_on_forgets_nothing_of_the_run_in_between(tmp_path: Path) -> None:
    """The clients' ledgers do not become those of the first run's end."""
    home, releases = new_run(tmp_path), Sent()
    first = run(noised(DPSL), rounds=1, run=home, releases=releases)
    options: dict[str, Any] = {"noise": NOISE, "optimizer": sgd(0.1), "device": "cpu"}
    DPSL(TOY.upper(), **options, seed=3).fit(first.clients, 2)
    DPSL(TOY.upper(), **options, run=Run.open(home.id, home=tmp_path)).fit(first.clients, 2)
    for client in range(4):
        assert truth(releases, client) == pytest.approx(epsilon(4 * (E_S + E_Y)))
        assert first.by_client(client) == pytest.approx(truth(releases, client))


class OneLeftOut(NoMixing):
    """Leaves client 0 out of the plans of the next round of one step."""

    out = 0

    def plan(self, members: Sequence[int], *further: Any) -> Any:
        if self.out:
            self.out -= 1
            members = [member for member in members if member != 0]
        return super().plan(members, *further)


def test_who_is_asked_for_nothing_when_a_round_is_repeated_pays_for_it_later(
    tmp_path: Path,
) -> None:
    """The round is not forgotten because the last gradients are delivered to all."""
    home, releases, mixer = new_run(tmp_path), Sent(), OneLeftOut()
    kind = partial(SplitStrategy, mixer=Noisy(mixer, NOISE))
    with pytest.raises(InterruptionError):
        run(kind, rounds=3, run=home, releases=releases, watch=[StopIn(1, 8)], steps_per_round=9)
    mixer.out = 1
    again = Run.open(home.id, home=tmp_path)
    outcome = run(kind, rounds=3, run=again, releases=releases, steps_per_round=1)
    check_order(outcome, range(4))


@pytest.mark.parametrize("steps", [1, 4])
def test_who_was_lost_before_the_checkpoint_and_went_on_pays_where_it_went_on(
    steps: int, tmp_path: Path
) -> None:
    """Rounds that are interrupted are not charged where its last state stands."""
    home, releases = new_run(tmp_path), Sent()

    def lose(clients: Sequence[Any]) -> None:
        clients[0].fails_at = (1, steps)  # with the last gradients

    options: dict[str, Any] = {"rounds": 3, "releases": releases, "steps_per_round": steps}
    for number, stop in enumerate([(2, steps - 1), *[(3, steps - 1)] * 4]):
        prepare = None if number else lose
        with pytest.raises(InterruptionError):
            run(noised(DPSL), run=home, watch=[StopIn(*stop)], prepare=prepare, **options)
        home = Run.open(home.id, home=tmp_path)
    check_order(run(noised(DPSL), run=home, **options), range(4))


@pytest.mark.parametrize("seed", range(3))
def test_who_is_not_drawn_when_a_round_is_repeated_pays_for_it_later(
    seed: int, tmp_path: Path
) -> None:
    """The run goes on with half of the clients in a round; all of them have begun round 2."""
    home, releases = new_run(tmp_path), Sent()
    with pytest.raises(InterruptionError):
        run(noised(DPSL), rounds=6, run=home, releases=releases, seed=seed, watch=[StopIn(2, 2)])
    again = Run.open(home.id, home=tmp_path)
    outcome = run(
        noised(DPSL), rounds=6, run=again, releases=releases, seed=seed, fraction_train=0.5
    )
    drawn = [client for client in range(4) if outcome.clients[client].guard is not None]
    assert len(drawn) >= 3
    check_order(outcome, drawn)


def test_a_round_that_no_client_attaches_to_costs_nothing(tmp_path: Path) -> None:
    """Nothing was released, so the run that goes on spends what an uninterrupted one spends."""

    def unreachable(*_: Any) -> dict[str, Any]:
        raise ClientError("the line is down")

    def cut_off(clients: Sequence[Any]) -> None:
        for client in clients:
            client.attach = unreachable

    home, releases = new_run(tmp_path), Sent()
    for _ in range(3):
        with pytest.raises(LinkError, match="the line is down"):
            run(noised(DPSL), run=home, releases=releases, prepare=cut_off)
        home = Run.open(home.id, home=tmp_path)
    assert home.begun == []
    assert not releases
    outcome = run(noised(DPSL), run=home, releases=releases)
    assert rounds_begun(home) == {1: 1}
    for client in range(4):
        assert outcome.slopes(client) == pytest.approx(E_S + E_Y)
    check_order(outcome, range(4))


@pytest.mark.parametrize("form", ["DPSL", "DPCutMixSL"])
def test_budgets_hold_over_an_interruption(form: str, tmp_path: Path) -> None:
    kind, form_options = FORMS[form]
    budgets = limits(*(epsilon(share * (E_S + E_Y)) for share in (1.1, 2.1, 3.1, 4.1)))
    releases: Sent = {}
    outcome = interrupted(
        noised(kind),
        TOY,
        new_run(tmp_path),
        9,
        stop=(2, 1),
        releases=releases,
        budgets=budgets,
        **form_options,
    )
    assert outcome.strategy.stop_reason
    for client, budget in budgets.items():
        assert budget.max_epsilon is not None
        assert truth(releases, client) <= budget.max_epsilon
        assert outcome.by_client(client) <= budget.max_epsilon
    # Going on with a run that has ended lets nobody send more.
    batches = {client: len(batches) for client, batches in releases.items()}
    home = outcome.strategy.recorder.run
    assert home is not None
    run(
        noised(kind),
        TOY,
        9,
        run=Run.open(home.id, home=tmp_path),
        releases=releases,
        budgets=budgets,
    )
    assert {client: len(batches) for client, batches in releases.items()} == batches


@pytest.mark.parametrize("limit", [None, 2.5])
def test_a_noisy_mixer_is_accounted_for_as_noise_is(limit: float | None, tmp_path: Path) -> None:
    def kind(upper: Any, **options: Any) -> SplitStrategy:
        return SplitStrategy(upper, mixer=Noisy(NoMixing(), NOISE), **options)

    releases = Sent()
    budgets = limits(*[limit] * 4)
    outcome = interrupted(
        kind, TOY, new_run(tmp_path), 4, stop=(3, 1), releases=releases, budgets=budgets
    )
    check_order(outcome, range(4))
    for client in range(4):
        assert limit is None or truth(releases, client) <= limit


def test_a_round_whose_beginning_cannot_be_recorded_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads of a round that nobody remembers would be free when it is repeated."""
    home, releases, begin = new_run(tmp_path), Sent(), Run.begin

    def full(self: Run, server_round: int, clients: Iterable[int], **kind: Any) -> None:
        if server_round == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        begin(self, server_round, clients, **kind)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "begin", full)
        with pytest.raises(RunError, match="the beginning of round 3 cannot be written"):
            run(noised(DPSL), TOY, 4, run=home, releases=releases)
    again = Run.open(home.id, home=tmp_path)
    check_order(run(noised(DPSL), TOY, 4, run=again, releases=releases), range(4))


def test_a_ledger_that_first_meets_a_client_in_the_middle_of_a_pass() -> None:
    """Three batches from there hold a record twice."""

    def moved(clients: Sequence[Any]) -> None:
        for client in clients:
            client.batches.drawn = 2

    check_order(run(noised(DPSL), TOY, 1, prepare=moved, steps_per_round=3), range(4))
