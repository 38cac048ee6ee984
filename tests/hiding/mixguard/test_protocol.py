"""MixGuard at the client: what it sends hides in mixtures, and no secret outlives its step."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import ClientError, MixGuardClient
from flwr_splitmix.hiding.mixguard import MixGuardOptions, Secret, draw_secret
from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import MixGuard
from tests.hiding.mixguard.clients import ORDER, PLAIN, TOY, batch_of, client_of


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
    text_places = batch.mask.bool()
    torch.testing.assert_close(
        words[text_places], client.head(batch.inputs, batch.mask)[text_places]
    )


def test_two_batches_have_nothing_in_common() -> None:
    client = client_of()
    one, other = (client.hiding.obfuscate(batch_of()) for _ in range(2))
    width = min(one.mask.shape[1], other.mask.shape[1])
    for mine, theirs in zip(one.messages, other.messages, strict=True):
        assert not torch.allclose(mine[:, :width], theirs[:, :width], atol=1e-3)


def test_supports_are_drawn_from_all_public_texts() -> None:
    client = client_of()
    drawn: set[tuple[int, ...]] = set()
    for _ in range(100):
        inserted = client.hiding._support(4)
        drawn |= {tuple(row[mask.bool()].tolist()) for row, mask in zip(*inserted[:2], strict=True)}
    public = TOY.texts(20_000, TOY.examples)
    assert drawn == {tuple(text.tolist()) for text in public.texts}


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
        if f"{number:.7g}" != "1"  # the target's weight in every message, which is not a secret
    }
    tensors = [*clients[0].state()[0].values(), *strategy.server_state()[0].values()]
    values = {v for t in tensors if t.is_floating_point() for v in t.double().flatten().tolist()}
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
    message = str(caught.value)
    assert drawn
    assert not any(f"{float(w):.3f}" in message for secret in drawn for w in secret.decoding)


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
    reply = client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    outputs = [strategy.trunk.module(m, reply["mask"]) for m in reply["messages"]]
    returned = client.run("decode", {"number": 0, "outputs": outputs})
    assert rank_of(returned["gradients"]) == rank


@pytest.mark.parametrize("each", [False, True])
def test_one_message_carries_the_gradient_of_a_step(each: bool) -> None:
    client = client_of(gradients="one-message", secret_per_sample=each)
    reply = client.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    returned = torch.stack(
        client.run("decode", {"number": 0, "outputs": reply["messages"]})["gradients"]
    )
    carriers = returned.flatten(2).norm(dim=2) > 0  # (m, b)
    assert carriers.sum(0).tolist() == [1] * returned.shape[1]
    assert each or len({tuple(column) for column in carriers.T.tolist()}) == 1
