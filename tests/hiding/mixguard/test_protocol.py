"""MixGuard at the client: what it sends hides in mixtures, and no secret outlives its step."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import ClientError, MixGuardClient, Order, TextSet
from flwr_splitmix.data.texts.batch import TextBatch
from flwr_splitmix.hiding import MixGuard as Hidden
from flwr_splitmix.hiding.mixguard import MixGuardOptions, Mixtures, Secret, draw_secret
from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import MixGuard
from flwr_splitmix.testing.laws import TextToy, sgd

ORDER = Order(0, 7, 1, 1)
PLAIN = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=0, perturbation=None)
TOY = TextToy(kind=MixGuardClient, clients=1, options=PLAIN, dropout=0.0)


def client_of(toy: TextToy = TOY, **options: Any) -> MixGuardClient:
    own = replace(toy, options=replace(toy.options, **options))
    client = own.clients_for(repeatable_secrets=False)[0]
    assert isinstance(client, MixGuardClient)
    client.attach(ORDER, None)
    return client


def batch_of(toy: TextToy = TOY, size: int = 4) -> TextBatch:
    return TextBatch.of(toy.texts(0, size).batch(np.arange(size)), torch.device("cpu"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 2, "m": 2},
        {"k": 5},
        {"m": 6},
        {"secret_per_sample": True},
        {"secret_tokens": 4},
        {"support_scale": 0.2},
        {"max_distortion": 0.5},
        {"sampler": "convex"},
        {"sampler": "skewed", "support_scale": 1.5, "k": 5},
        {"mask": "target"},
    ],
    ids=str,
)
def test_where_the_trunk_is_the_identity_the_texts_come_back(options: dict[str, Any]) -> None:
    client = client_of(**options)
    batch = batch_of()
    sent = client.hiding.obfuscate(batch)
    assert len(sent.messages) == client.options.m
    recovered = client.hiding.recover(sent.messages, sent)
    torch.testing.assert_close(recovered, sent.hidden, rtol=0, atol=1e-12)
    real = sent.own_mask.bool()
    assert not any(torch.allclose(m[real], recovered[real], atol=1e-3) for m in sent.messages)
    # What the tail says is about the text's own words, in their order.
    words = client.hiding.tokens.remove(recovered, sent.positions)
    own = batch.mask.bool()
    torch.testing.assert_close(words[own], client.head(batch.ids, batch.mask)[own])


def test_two_batches_have_nothing_in_common() -> None:
    client = client_of()
    one, other = (client.hiding.obfuscate(batch_of()) for _ in range(2))
    width = min(one.mask.shape[1], other.mask.shape[1])
    for mine, theirs in zip(one.messages, other.messages, strict=True):
        assert not torch.allclose(mine[:, :width], theirs[:, :width], atol=1e-3)


def test_supports_are_drawn_from_all_public_texts() -> None:
    client = client_of()
    seen: set[tuple[int, ...]] = set()
    for _ in range(100):
        inserted = client.hiding._support(4)
        seen |= {tuple(row[mask.bool()].tolist()) for row, mask in zip(*inserted[:2], strict=True)}
    public = TOY.texts(20_000, TOY.examples)
    assert seen == {tuple(text.tolist()) for text in public.texts}


def test_calibration_brings_the_decoded_texts_nearer() -> None:
    options = MixGuardOptions(
        secret_tokens=0, max_length=32, calibration_epochs=60, calibration_lr=1e-2, k=2, m=2
    )
    toy = replace(TOY, options=options, width=8)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=1)
    client = toy.clients_for(strategy)[0]
    assert isinstance(client, MixGuardClient)
    client.hiding._errors = deque()  # of all steps
    strategy.fit([client], 1)
    assert client.hiding.calibrated
    errors = list(client.hiding._errors)
    first, last = errors[:20], errors[-20:]
    assert np.mean([after for _, after in last]) < 0.95 * np.mean([b for b, _ in last])
    assert first[0][0] == pytest.approx(first[0][1])  # the identity at first


def test_secrets_are_drawn_as_the_options_say() -> None:
    light = client_of(
        sampler="rotated", support_scale=0.1, max_distortion=0.2, secret_per_sample=True
    )
    drawn = [light.hiding.obfuscate(batch_of()).secret for _ in range(20)]
    assert all((secret.distortion <= 0.2).all() for secret in drawn)
    # On the messages of the lesser sign every source has weight c alone, in 0.1 times the range.
    weights = torch.cat(
        [(secret.mixing * (secret.signs < 0)[..., None]).sum(1) for secret in drawn]
    )
    assert weights.min() >= 0.05
    assert weights.max() <= 0.15
    any_secret = client_of(sampler="rotated", secret_per_sample=True)
    plain = [any_secret.hiding.obfuscate(batch_of()).secret.distortion.max() for _ in range(20)]
    assert max(plain) > 0.5


def test_calibration_is_done_once_and_refined_as_often_as_asked() -> None:
    calls: list[str] = []

    class Counting(MixGuardClient):
        def run(self, method: str, arguments: Any) -> dict[str, Any]:
            reply = super().run(method, arguments)
            calls.append(f"{method}+public" if "public" in reply else method)
            return reply

    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=2, refine_every=2)
    toy = replace(TOY, kind=Counting, options=options)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=4)
    strategy.fit(toy.clients_for(strategy), 2)
    assert calls.count("decode_public") == 2 * toy.examples // toy.batch
    assert calls.count("encode+public") == 2 * 2


def test_refinement_counts_steps_over_all_rounds() -> None:
    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=1, refine_every=3)
    toy = replace(TOY, options=options)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=2)
    client = toy.clients_for(strategy)[0]
    assert isinstance(client, MixGuardClient)
    strategy.fit([client], 6)
    assert client.calibration is not None
    (first, *_) = client.calibration.optimizer.state.values()
    assert int(first["step"]) == toy.examples // toy.batch + 12 // 3


def test_a_round_without_calibration_says_what_came_of_the_last_one() -> None:
    """Not that nothing is off; also when another process goes on."""
    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=1, refine_every=0)
    toy = replace(TOY, options=options)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=1)
    client = toy.clients_for(strategy)[0]
    strategy.fit([client], 2)
    first, second = strategy.recorder.metrics.rows
    assert first["train_decode_error"] == second["train_decode_error"] > 0
    other = toy.clients_for()[0]
    other.attach(ORDER, None)
    other.restore(*client.state())
    assert other.release()[1]["decode-error"] == second["train_decode_error"]


def test_refinement_sees_the_head_that_the_last_step_left() -> None:
    """The trunk that answers has taken that step too."""
    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=1, refine_every=1)
    client = client_of(replace(TOY, options=options))
    client.hiding.calibrated = True
    sent = client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    answer = {"number": 0, "outputs": sent["messages"], "public": None}
    gradient = client.run("decode", answer)["gradients"]
    words = client.head.words
    assert isinstance(words, torch.nn.Embedding)
    before = words.weight.detach().clone()
    client.run("encode", {"number": 1, "progress": 0.1, "gradient": gradient})
    after = words.weight.detach()
    assert not torch.equal(before, after)
    mixtures = client._public[0]
    assert isinstance(mixtures, Mixtures)
    batch = mixtures.batch
    real = mixtures.own_mask.bool()
    table = after[batch.ids[batch.mask.bool()]]
    torch.testing.assert_close(mixtures.hidden[real], table)


def secrets_of(monkeypatch: pytest.MonkeyPatch) -> list[Secret]:
    """Return a list that grows by every secret that is drawn."""
    drawn: list[Secret] = []

    def watched(*sizes: int, **options: Any) -> Secret:
        drawn.append(draw_secret(*sizes, **options))
        return drawn[-1]

    monkeypatch.setattr("flwr_splitmix.hiding.mixguard.options.draw_secret", watched)
    return drawn


def test_no_secret_is_kept_or_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = secrets_of(monkeypatch)
    caplog.set_level(logging.DEBUG)
    run = Run.create({}, name="secrets", home=tmp_path)
    options = MixGuardOptions(secret_tokens=2, max_length=32, calibration_epochs=1)
    toy = replace(TOY, options=options, tests=4)
    strategy = MixGuard(
        toy.server(), device="cpu", run=run, evaluation="federated", steps_per_round=2
    )
    clients = toy.clients_for(strategy, repeatable_secrets=False)
    strategy.fit(clients, 2)
    assert len(drawn) > 10
    numbers = {
        float(number)
        for secret in drawn
        for part in (secret.weights, secret.decoding, secret.mixing, secret.blinding)
        for number in part.flatten()
        if f"{number:.7g}" != "1"  # the target's weight in every message, which is no secret
    }
    kept = [*clients[0].state()[0].values(), *strategy.server_state()[0].values()]
    values = {v for t in kept if t.is_floating_point() for v in t.double().flatten().tolist()}
    assert not numbers & values
    written = b"".join(file.read_bytes() for file in run.path.rglob("*") if file.is_file())
    for secret in drawn:  # whole rows: a single number of four bytes may be there by chance
        for row in [*secret.weights, *secret.mixing, *secret.blinding, secret.decoding]:
            assert row.numpy().tobytes() not in written
            assert row.float().numpy().tobytes() not in written
    text = caplog.text + "".join(map(repr, drawn)) + written.decode("latin1")
    assert not any(f"{number:.7g}" in text for number in numbers)


def test_an_exception_says_nothing_of_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = secrets_of(monkeypatch)
    client = client_of()
    client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    with pytest.raises(ClientError) as caught:
        client.run("decode", {"number": 0, "outputs": [torch.zeros(1, 1, 1)]})
    said = str(caught.value)
    assert drawn
    assert not any(f"{float(w):.3f}" in said for secret in drawn for w in secret.decoding)


def test_perturbation_is_as_loud_as_the_residual() -> None:
    toy = replace(TOY, options=replace(PLAIN, perturbation="constant", strength=0.5), width=400)
    client = client_of(toy)
    sent = client.hiding.obfuscate(batch_of(toy))
    gradient, hidden = torch.randn(4, 9, 400).double(), torch.randn(4, 9, 400).double()
    noise = client.hiding.perturb(gradient, hidden, sent) - gradient
    assert noise.std().item() == pytest.approx(0.5 * gradient.std().item(), rel=0.05)


def rank_of(gradients: list[Tensor]) -> int:
    rows = torch.stack([gradient.flatten() for gradient in gradients])
    return int(torch.linalg.matrix_rank(rows / rows.norm(), tol=1e-6))


@pytest.mark.parametrize(("kind", "rank"), [("target", 1), ("all-sources", 3)])
def test_gradients_have_the_rank_of_what_is_decoded(kind: Any, rank: int) -> None:
    options = MixGuardOptions(
        secret_tokens=0, max_length=32, calibration_epochs=3, perturbation=None, gradients=kind
    )
    toy = replace(TOY, options=options, width=8)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=1)
    client = toy.clients_for(strategy)[0]
    assert isinstance(client, MixGuardClient)
    strategy.fit([client], 1)
    client.attach(replace(ORDER, server_round=2), None)
    sent = client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    outputs = [strategy.trunk.module(m, sent["mask"]) for m in sent["messages"]]
    returned = client.run("decode", {"number": 0, "outputs": outputs})
    assert rank_of(returned["gradients"]) == rank


@pytest.mark.parametrize("each", [False, True])
def test_one_message_carries_the_gradient_of_a_step(each: bool) -> None:
    client = client_of(gradients="one-message", secret_per_sample=each)
    sent = client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    returned = torch.stack(
        client.run("decode", {"number": 0, "outputs": sent["messages"]})["gradients"]
    )
    carriers = returned.flatten(2).norm(dim=2) > 0  # (m, b)
    assert carriers.sum(0).tolist() == [1] * returned.shape[1]
    assert each or len({tuple(column) for column in carriers.T.tolist()}) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"k": 1}, "k is 1 and m is 3; both must be at least 2"),
        ({"m": 1}, "k is 3 and m is 1; both must be at least 2"),
        ({"gradients": "both"}, "gradients is 'both'; allowed are target, all-sources,"),
        ({"gradients": "all-sources", "k": 4}, "'all-sources' needs m >= k, here m is 3 and k is"),
        ({"secret_tokens": -1}, "secret_tokens is -1; it must be a whole number, at least 0"),
        ({"calibration_epochs": 0}, "perturbation 'adaptive' follows the calibrator's residual"),
        ({"support_scale": 0.0}, "support_scale is 0.0; it must be positive and finite"),
        ({"max_distortion": 0.0}, "max_distortion is 0.0; it must be positive and finite"),
        ({"calibration_lr": -1.0}, "calibration_lr is -1.0; it must be positive and finite"),
        ({"strength": math.nan}, "strength is nan; it must be at least 0 and finite"),
        ({"perturbation": "Adaptive"}, "perturbation is 'Adaptive'; allowed are 'adaptive', 'con"),
        ({"calibration_rank": 0}, "calibration_rank is 0; it must be a whole number, at least 1"),
        ({"k": 2.5}, "k is 2.5; it must be a whole number, at least 2"),
        ({"pad_to": 600}, "pad_to is 600; it must be at most max_length, 512"),
        ({"secret_tokens": 512}, "secret_tokens is 512; of 512 tokens at least one must be left"),
        ({"m": 60, "sampler": "rotated"}, "no secret met the constraints in 2000 draws with m=60"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MixGuardOptions(**options)


def test_an_empty_set_of_supports_is_refused() -> None:
    with pytest.raises(ClientError, match="no public text: its set of supports is empty"):
        MixGuardClient(
            TOY.head(), TOY.tail(), TOY.texts(0, 4), TextSet([], []), vocab_size=23, device="cpu"
        )


@pytest.mark.parametrize(("texts", "warned"), [(2, True), (3, False)])
def test_fewer_supports_than_places_are_warned_of(
    texts: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    Hidden(TOY.texts(0, texts), vocab_size=23, options=MixGuardOptions(k=4, m=4))
    assert ("with 3 supports, drawn from only 2" in caplog.text) is warned


@pytest.mark.parametrize("name", ["data", "public"])
def test_a_text_that_leaves_no_room_for_secret_tokens_is_named_at_once(name: str) -> None:
    """A public one used to end a run in the step that drew it as a support."""

    def made(longest: int, pad_to: int | None = None) -> MixGuardClient:
        texts = [torch.full((length,), 2) for length in (3, longest, 5)]
        sets = {"data": TOY.texts(0, 4), "public": TOY.texts(1, 4)}
        sets[name] = TextSet(texts, texts, pad_to=pad_to)
        options = replace(PLAIN, secret_tokens=2)
        parts = TOY.head(), TOY.tail(), sets["data"], sets["public"]
        return MixGuardClient(*parts, vocab_size=23, options=options, device="cpu")

    made(30).attach(ORDER, None)
    with pytest.raises(
        ValueError, match=f"{name} has texts of up to 31 .* at most 30, .*: cut the"
    ):
        made(31)
    with pytest.raises(ValueError, match=f"{name} has texts of up to 32 tokens with"):
        made(30, pad_to=32)


def test_a_batch_that_leaves_no_room_for_secret_tokens_is_named() -> None:
    client = client_of(secret_tokens=23)
    long = torch.full((1, 10), 2)
    with pytest.raises(ValueError, match="23 secret ones exceed max_length 32"):
        client.hiding.obfuscate(TextBatch(long, torch.ones_like(long), long))


def test_the_calibrator_is_part_of_the_state() -> None:
    options = MixGuardOptions(secret_tokens=0, max_length=32, calibration_epochs=1)
    toy = replace(TOY, options=options)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=1)
    client = toy.clients_for(strategy, sgd())[0]
    strategy.fit([client], 1)
    tensors, meta = client.state()
    other = toy.clients_for()[0]
    other.attach(ORDER, None)
    other.restore(tensors, meta)
    assert other.attach(ORDER, None)["calibration-steps"] == 0
    again, _ = other.state()
    assert tensors.keys() == again.keys()
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
