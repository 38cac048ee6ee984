"""Split-N-Denoise at the client: what is sent, what is learned of public texts, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.clients import Order
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import MixGuard, SnD
from flwr_splitmix.hiding.mixguard.options import MixGuardOptions
from flwr_splitmix.hiding.snd import Denoiser, Denoising
from flwr_splitmix.hiding.snd.protocol import NoisyStates
from flwr_splitmix.seeding import seeded_draws, seeded_secrets
from flwr_splitmix.strategies import USHAPE_STRATEGIES
from flwr_splitmix.testing.laws import check_ushape_equals_whole
from flwr_splitmix.testing.toy_texts import VOCABULARY, TextToy
from flwr_splitmix.values import options_of

ORDER = Order(0, 7, 1, 1)
TOY = TextToy(clients=1, dropout=0.0)
PUBLIC = TOY.texts(20_000, 12)


def snd(**options: Any) -> SnD:
    return SnD(PUBLIC, vocab_size=VOCABULARY, **{"eta": 20.0, **options})


def client_of(**options: Any) -> Any:
    (client,) = replace(TOY, hiding=lambda: snd(**options)).clients_for()
    client.attach(ORDER, None)
    return client


BATCH = MaskedBatch(
    torch.tensor([[2, 3, 4, 5], [6, 7, 0, 0]]),
    torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    torch.zeros(2, dtype=torch.int64),
)


def test_what_leaves_is_noisy_and_no_longer_than_a_word() -> None:
    client = client_of(eta=1.0)
    sent = client.hiding.obfuscate(BATCH)
    assert isinstance(sent, NoisyStates)
    hidden = client.head(BATCH.inputs, BATCH.mask)
    bound = float(client.head.get_parameter("words.weight").detach().norm(dim=1).max())
    assert client.hiding.bound == pytest.approx(bound, rel=1e-6)
    lengths = sent.messages[0].detach().norm(dim=2)
    assert float(lengths.max()) <= bound * (1 + 1e-6)
    assert (lengths > bound * (1 - 1e-6)).any()  # radii of 5 on average: most are shortened
    torch.testing.assert_close(sent.hidden, hidden.detach())
    torch.testing.assert_close(sent.noise, (sent.messages[0] - hidden).detach())
    assert (sent.noise.norm(dim=2) > 0).all()


def test_noise_that_is_small_is_what_was_drawn() -> None:
    client = client_of(eta=1000.0)
    wide = replace(BATCH, inputs=BATCH.inputs.repeat(300, 1), mask=BATCH.mask.repeat(300, 1))
    words = client.head.get_parameter("words.weight")
    with torch.no_grad():
        words[10] *= 3  # one long word, so that nothing is shortened
    radii = client.hiding.obfuscate(wide).noise.norm(dim=2)
    width = words.shape[1]
    assert float(radii.mean()) == pytest.approx(width / 1000, rel=0.05)


def test_without_a_denoiser_split_equals_whole() -> None:
    toy = TextToy(hiding=lambda: snd(calibration_epochs=0), clients=2)
    check_ushape_equals_whole(USHAPE_STRATEGIES["SnDSL"], toy)


def test_the_denoiser_learns_on_public_texts_and_helps() -> None:
    """On an affine trunk noise passes through linearly, and can be taken off again."""
    toy = replace(TOY, hiding=lambda: snd(calibration_epochs=30, calibration_lr=5e-3), affine=True)
    strategy = USHAPE_STRATEGIES["SnDSL"](toy.server(), device="cpu", steps_per_round=1)
    (client,) = toy.clients_for(strategy)
    strategy.fit([client], 1)
    metrics = client.hiding.metrics()
    assert metrics["denoised-error"] < 0.75 * metrics["noise-error"]
    row = strategy.rows[0]
    assert row["train_denoised_error"] == pytest.approx(metrics["denoised-error"])
    # Three batches an epoch before training, and one beside its step.
    assert client.hiding.state()[1]["public-drawn"] == 91
    assert client.hiding.calibration_steps == 0


def test_a_denoiser_does_nothing_before_it_has_learned() -> None:
    client = client_of()
    sent = client.hiding.obfuscate(BATCH)
    outputs = torch.randn_like(sent.messages[0])
    assert torch.equal(client.hiding.recover([outputs], sent), outputs)


def test_it_takes_a_step_only_towards_what_it_is_told_is_right() -> None:
    with seeded_draws(torch.device("cpu"), 0), seeded_secrets():
        denoising = Denoising(Denoiser(5, 8, 1, causal=True), learning_rate=1e-2)
        states, noise, plain = torch.randn(3, 4, 6, 5)
    mask = torch.ones(4, 6, dtype=torch.int64)
    errors = [denoising.step(plain + noise, states, noise, plain, mask) for _ in range(60)]
    assert errors[0][0] == pytest.approx(errors[0][1])  # the identity at first
    assert errors[-1][1] < 0.5 * errors[-1][0]
    assert not any(p.requires_grad for p in denoising.denoiser.parameters())


@pytest.mark.parametrize("causal", [True, False])
def test_what_is_behind_a_word_is_not_seen_where_words_are_predicted(causal: bool) -> None:
    denoiser = Denoiser(5, 8, 2, causal=causal).eval()
    with torch.no_grad():
        denoiser.leave.weight.normal_()
    one = torch.randn(3, 2, 6, 5)
    other = one.clone()
    other[:, :, 4:] += 1.0
    mask = torch.ones(2, 6, dtype=torch.int64)
    with torch.no_grad():
        first, second = (denoiser(*parts, mask) for parts in (one, other))
        same = torch.allclose(first[:, :4], second[:, :4], atol=1e-6)
        padded = mask.clone()
        padded[:, 4:] = 0
        behind = [denoiser(*parts, padded)[:, :4] for parts in (one, other)]
    assert same is causal
    torch.testing.assert_close(*behind)  # padding is never seen


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eta": 0.0}, r"eta is 0\.0; it must be a number above 0"),
        ({"eta": math.inf}, "eta is inf; it must be a number above 0"),
        ({"calibration_lr": -1.0}, r"calibration_lr is -1\.0; it must be a number above 0"),
        ({"calibration_epochs": -1}, "calibration_epochs is -1; it must be at least 0"),
        ({"calibration_blocks": 0}, "calibration_blocks is 0; it must be at least 1"),
        ({"calibration_rank": 6}, "calibration_rank is 6; SnD's denoiser needs a multiple of 4"),
        ({"refine_every": -1}, "refine_every is -1; it must be at least 0"),
        ({"vocab_size": 0}, "vocab_size is 0; it must be at least 1"),
        ({"public": TOY.texts(0, 0)}, "SnD has no public text for its denoiser to learn on"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_out_of_range_is_named(options: dict[str, Any], sentence: str) -> None:
    values = {"public": PUBLIC, "vocab_size": VOCABULARY, **options}
    with pytest.raises(ValueError, match=sentence):
        SnD(**values)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eta": "high"}, "eta is 'high'; it must be a number"),
        ({"calibration_epochs": 1.5}, r"calibration_epochs is 1\.5; it must be a whole number"),
        ({"vocab_size": None}, "vocab_size is None; it must be a whole number"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_of_another_kind_is_named(options: dict[str, Any], sentence: str) -> None:
    values = {"public": PUBLIC, "vocab_size": VOCABULARY, **options}
    with pytest.raises(ValueError, match=sentence):
        SnD(**values)


@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("hiding", [SnD, MixGuard])
def test_public_texts_that_are_no_data_set_are_named(hiding: Any, epochs: int) -> None:
    how = {"calibration_epochs": epochs} if hiding is SnD else {}
    with pytest.raises(TypeError, match="public is list_iterator; expected a map-style data set"):
        hiding(iter([PUBLIC[0]]), vocab_size=VOCABULARY, **how)


def test_the_denoisers_width_is_that_of_the_states_unless_it_is_given() -> None:
    def shapes(**options: Any) -> list[torch.Size]:
        return [p.shape for p in client_of(**options).hiding.denoising.denoiser.parameters()]

    assert shapes() == shapes(calibration_rank=None) == shapes(calibration_rank=0)
    assert shapes() != shapes(calibration_rank=4)


def test_a_denoiser_of_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="inner is 6; it must be a positive multiple of 4"):
        Denoiser(5, 6, 1, causal=True)
    with pytest.raises(ValueError, match="blocks is 0; it must be at least 1"):
        Denoiser(5, 8, 0, causal=True)


def test_numbers_of_numpy_are_kept_in_a_runs_record_as_pythons() -> None:
    """A record has JSON's numbers only."""
    whole: Any = np.int64(3)
    real: Any = np.float32(0.5)
    record = options_of(SnD(PUBLIC, vocab_size=whole, eta=real, calibration_lr=real))
    assert (record["vocab_size"], record["eta"], record["calibration_lr"]) == (3, 0.5, 0.5)
    options = options_of(MixGuardOptions(k=whole, strength=real, support_scale=real))
    assert {"k": 3, "strength": 0.5, "support_scale": 0.5}.items() <= options.items()
