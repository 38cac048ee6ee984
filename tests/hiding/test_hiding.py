"""Hiding: one object a client, given to it; methods keep their own names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import (
    ClientError,
    MixGuardClient,
    Order,
    UShapeClient,
    score_locally,
)
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import (
    DPSGD,
    HIDINGS,
    Hiding,
    MixGuard,
    MixGuardOptions,
    NaiveMix,
    SentBatch,
)
from flwr_splitmix.hiding import mixguard as parts
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from flwr_splitmix.strategies import MixGuard as MixGuardStrategy
from flwr_splitmix.testing.laws import TextToy, check_same_tensors, sgd
from flwr_splitmix.testing.toy_texts import SPECIAL_IDS, VOCABULARY, text_toy

ORDER = Order(0, 7, 1, 1)
OPTIONS = MixGuardOptions(secret_tokens=2, max_length=32, calibration_epochs=1)
TOY = TextToy(clients=1, tests=6, options=OPTIONS)


def mixguard(kind: type[MixGuard] = MixGuard) -> MixGuard:
    public = TOY.texts(20_000, TOY.examples)
    return kind(public, vocab_size=VOCABULARY, special_ids=SPECIAL_IDS, options=OPTIONS)


TRAINED: dict[str, Any] = {"USplitSL": Hiding, "NaiveMixSL": NaiveMix, "MixGuard": mixguard}


@pytest.mark.parametrize(
    ("name", "kind"), [("USplitSL", UShapeClient), ("MixGuard", MixGuardClient)]
)
def test_a_client_of_its_own_name_is_the_same_as_one_with_the_hiding(
    name: str, kind: type[UShapeClient]
) -> None:
    """To the last bit: weights, optimizer, calibrator, and what a round says."""
    trained = []
    for toy in (replace(TOY, kind=kind), replace(TOY, hiding=TRAINED[name])):
        strategy = USHAPE_STRATEGIES[name](
            toy.server(), device="cpu", steps_per_round=3, evaluation="federated"
        )
        (client,) = toy.clients_for(strategy)
        strategy.fit([client], 2)
        row = {k: v for k, v in strategy.rows[-1].items() if k.startswith("eval")}
        trained.append((*client.state(), row, client.hiding.metrics()))
    (own_weights, *own_facts), (given_weights, *given_facts) = trained
    check_same_tensors(name, own_weights, given_weights, 0.0)
    assert own_facts == given_facts


@pytest.mark.parametrize("name", USHAPE_STRATEGIES)
def test_a_strategy_names_the_hiding_of_its_clients(name: str) -> None:
    (client,) = text_toy(name, clients=1).clients_for()
    assert type(client.hiding) is USHAPE_STRATEGIES[name].hiding


def test_names_in_a_clients_state_stay() -> None:
    """Older runs are resumed from them."""
    toy = replace(TOY, hiding=mixguard)
    strategy = MixGuardStrategy(toy.server(), device="cpu", steps_per_round=1)
    (client,) = toy.clients_for(strategy, sgd())
    strategy.fit([client], 1)
    tensors, meta = client.state()
    assert {"public-drawn", "calibrated", "errors", "calibration", "drawn"} <= meta.keys()
    assert sorted(tensors) == [
        *(f"calibration.moment.{i}.{n}" for i in (0, 1) for n in ("exp_avg", "exp_avg_sq", "step")),
        "calibration.weight.blocks.0.down.weight",
        "calibration.weight.blocks.0.up.weight",
        "segment.head.words.weight",
        "segment.tail.output.bias",
        "segment.tail.output.weight",
    ]
    # Three batches of Stage I and one of refinement.
    assert (meta["public-drawn"], meta["drawn"]) == (4, 1)


@pytest.mark.parametrize("name", ["MixGuard", "SnDSL"])
def test_private_texts_are_not_sent_before_calibration_is_done(name: str) -> None:
    """A server that skips it, or names its last step, gets none without MixGuard's noise."""
    (client,) = text_toy(name, clients=1).clients_for()
    steps = client.attach(ORDER, None)["calibration-steps"]
    assert steps > 1
    batch = {"number": 0, "progress": 0.0, "gradient": None}
    for steps_left in range(steps, 0, -1):
        with pytest.raises(ClientError, match=f"calibrates for {steps_left} more step"):
            client.run("encode", batch)
        if steps_left == steps:
            client.release()  # the end of a round is not the end of calibration
            with pytest.raises(ClientError, match=f"calibrates for {steps_left} more step"):
                client.run("encode", batch)
        public = client.run("encode_public", {"number": 0})["public"]
        answer = [group["messages"] for group in public]
        client.run("decode_public", {"number": 10**9, "public": answer})
    assert client.hiding.calibration_steps == 0
    assert client.run("encode", batch)["messages"]
    (other,) = text_toy(name, clients=1).clients_for()
    other.attach(ORDER, None)
    other.restore(*client.state())
    assert other.run("encode", batch)["messages"]


def test_one_hiding_serves_one_client() -> None:
    shared = Hiding()
    one, other = replace(TOY, clients=2, hiding=lambda: shared).clients_for()
    one.attach(ORDER, None)
    one.attach(replace(ORDER, server_round=2), None)
    with pytest.raises(ValueError, match="a Hiding belongs to one client; make one for each"):
        other.attach(replace(ORDER, client=1), None)


def test_before_the_first_round_nothing_is_hidden() -> None:
    batch = MaskedBatch(*(torch.ones(1, 1, dtype=torch.int64) for _ in range(3)))
    with pytest.raises(RuntimeError, match="this NaiveMix has not been attached to a round"):
        NaiveMix().obfuscate(batch)


@pytest.mark.parametrize("lam", [0, -0.1, 1.1])
def test_a_mixing_ratio_out_of_range_is_named(lam: float) -> None:
    with pytest.raises(ValueError, match=rf"lam is {lam}; it must be above 0 and at most 1"):
        NaiveMix(lam)


def test_a_batch_of_one_text_is_refused_where_it_would_not_be_mixed() -> None:
    """Each text would be sent as it is, without a word."""
    (client,) = text_toy("NaiveMixSL", clients=1).clients_for(batch_size=1)
    with pytest.raises(ClientError, match="batch_size is 1, but NaiveMix works only among several"):
        client.attach(ORDER, None)


def test_a_client_of_one_text_is_refused_where_it_would_meet_itself() -> None:
    (client,) = replace(TOY, hiding=NaiveMix, examples=1).clients_for(batch_size=2)
    with pytest.raises(ClientError, match="the number of examples is 1, but NaiveMix works only"):
        client.attach(ORDER, None)


def test_the_naive_mixture_is_of_neighbours_and_of_their_losses() -> None:
    toy = replace(TOY, hiding=lambda: NaiveMix(0.7), task="classification", dropout=0.0)
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    batch = MaskedBatch(
        torch.tensor([[2, 3], [4, 0]]), torch.tensor([[1, 1], [1, 0]]), torch.tensor([0, 2])
    )
    sent = client.hiding.obfuscate(batch)
    words = client.head(batch.inputs, batch.mask)
    mixed = torch.stack(
        [
            torch.stack([0.7 * words[0, 0] + 0.3 * words[1, 0], 0.7 * words[0, 1]]),
            torch.stack([0.7 * words[1, 0] + 0.3 * words[0, 0], 0.3 * words[0, 1]]),
        ]
    )
    torch.testing.assert_close(sent.messages[0], mixed)
    assert sent.mask.tolist() == [[1, 1], [1, 1]]
    log = client.tail(mixed, sent.mask).float().log_softmax(1)
    expected = -(0.7 * (log[0, 0] + log[1, 2]) + 0.3 * (log[0, 2] + log[1, 0])) / 2
    torch.testing.assert_close(client.loss(mixed, sent), expected)


class Doubling(Hiding):
    """Changes what any hiding that it is mixed into sends and reads, in one place."""

    def obfuscate(self, batch: MaskedBatch) -> Any:
        sent = super().obfuscate(batch)
        return replace(sent, messages=[2 * message for message in sent.messages])

    def recover(self, outputs: Sequence[Tensor], sent: SentBatch) -> Tensor:
        return super().recover([output / 2 for output in outputs], sent)


class DoublingPlain(Doubling):
    pass


class DoublingNaive(Doubling, NaiveMix):
    pass


class DoublingGuard(Doubling, MixGuard):
    pass


DOUBLED: dict[str, Any] = {
    "USplitSL": DoublingPlain,
    "NaiveMixSL": DoublingNaive,
    "MixGuard": partial(mixguard, DoublingGuard),
}


@pytest.mark.parametrize("name", TRAINED)
def test_what_a_hiding_overrides_holds_for_all_texts(name: str) -> None:
    """Private, public and test texts: on a linear trunk what is doubled and halved is no change."""
    trained = []
    for hiding in (TRAINED[name], DOUBLED[name]):
        toy = replace(TOY, hiding=hiding, affine=True, dropout=0.0)
        strategy = USHAPE_STRATEGIES[name](
            toy.server(),
            optimizer=sgd(0.0),
            device="cpu",
            steps_per_round=1,
            evaluation="federated",
        )
        for part in ("own", "past"):
            strategy.trunk.module.get_parameter(f"{part}.bias").data.zero_()
        (client,) = toy.clients_for(strategy, sgd(0.0))
        strategy.fit([client], 1)
        row = strategy.rows[0]
        trained.append([row["loss"], row["eval_loss"], *client.hiding.metrics().values()])
    # A calibrator that learns on other public texts is another one.
    assert trained[0][:2] == pytest.approx(trained[1][:2], rel=1e-3 if name == "MixGuard" else 1e-6)
    if name == "MixGuard":  # what decodes public texts is not overridden: they stay doubled
        assert trained[0][2] < 1e-6
        assert trained[1][2] == pytest.approx(1)


def test_a_client_that_hides_nothing_has_no_public_texts() -> None:
    (client,) = TOY.clients_for()
    client.attach(ORDER, None)
    with pytest.raises(ClientError, match="this client has no public texts to send"):
        client.run("encode_public", {"number": 0})
    with pytest.raises(ClientError, match="answers with public texts that were not sent"):
        client.run("decode_public", {"number": 0, "public": []})


def test_public_answers_must_be_those_to_what_was_sent() -> None:
    (client,) = replace(TOY, hiding=mixguard).clients_for()
    client.attach(ORDER, None)
    mixed, plain = (
        group["messages"] for group in client.run("encode_public", {"number": 0})["public"]
    )
    with pytest.raises(ClientError, match="answers with public texts that were not sent"):
        client.run("decode_public", {"number": 0, "public": [mixed]})
    client.run("encode_public", {"number": 0})
    with pytest.raises(ClientError, match="answers with outputs of shapes"):
        client.run("decode_public", {"number": 0, "public": [mixed, [plain[0][:1]]]})


def test_a_client_infers_behind_what_its_tail_was_trained_behind() -> None:
    toy = replace(TOY, hiding=mixguard)
    strategy = MixGuardStrategy(toy.server(), device="cpu", steps_per_round=2)
    (client,) = toy.clients_for(strategy)
    strategy.fit([client], 1)
    trunk = strategy.trunk.module
    behind = client.hiding.local_trunk(trunk)
    assert isinstance(behind, parts.CalibratedTrunk)
    assert score_locally(client, behind, "federated") != score_locally(client, trunk, "federated")
    assert Hiding().local_trunk(trunk) is trunk
    assert isinstance(client.hiding, MixGuard)
    client.hiding.options = replace(OPTIONS, calibrated_inference=False)
    assert client.hiding.local_trunk(trunk) is trunk


def test_an_empty_set_of_supports_is_refused_by_both() -> None:
    empty = replace(TOY).texts(0, 0)
    with pytest.raises(ValueError, match="MixGuard has no public text"):
        MixGuard(empty, vocab_size=VOCABULARY)
    with pytest.raises(ClientError, match="MixGuard has no public text"):
        MixGuardClient(
            TOY.head(), TOY.tail(), TOY.texts(0, 4), empty, vocab_size=VOCABULARY, device="cpu"
        )


@pytest.mark.parametrize(
    ("public", "message"),
    [
        (3, "public is int; expected a map-style data set"),
        ([[1, 2, 3], [4, 5]], r"public: a data set must give \(input, label\) pairs, .* TextSet"),
    ],
)
def test_public_texts_of_another_form_are_named(public: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Hiding(public)
    with pytest.raises(TypeError, match=message):
        MixGuard(public, vocab_size=9)


def test_mixguard_needs_public_texts() -> None:
    with pytest.raises(TypeError, match="public is NoneType; expected a map-style data set"):
        MixGuard(None, vocab_size=9)  # type: ignore[arg-type]


def test_the_hidings_are_those_of_the_strategies() -> None:
    assert {kind.hiding for kind in USHAPE_STRATEGIES.values()} - {Hiding} == set(HIDINGS)


def test_a_hiding_says_as_which_one_its_clients_send() -> None:
    """Also of a hiding of one's own."""

    class Louder(DPSGD):
        pass

    class Quieter(NaiveMix):
        @classmethod
        def sends_as(cls) -> type[Hiding]:
            return NaiveMix

    assert [kind.sends_as() for kind in (MixGuard, DPSGD, Louder)] == [MixGuard, Hiding, Hiding]
    assert Quieter.sends_as() is NaiveMix
