"""Rotated secrets meet the paper's constraints, decode what they encode, and show no number."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from flwr_splitmix.hiding.mixguard import Secret, draw_secret
from flwr_splitmix.seeding import seeded_secrets

SIZES = [(3, 3), (2, 2), (3, 10), (9, 3), (5, 3)]
DRAWS = 1000
rotated = partial(draw_secret, sampler="rotated")
sizes = pytest.mark.parametrize(("m", "k"), SIZES)


def one_hot(places: Tensor, k: int) -> Tensor:
    return torch.nn.functional.one_hot(places, k).double()


@sizes
def test_every_secret_meets_the_papers_constraints(m: int, k: int) -> None:
    secrets = rotated(m, k, samples=DRAWS)
    assert secrets.mixing.dtype == torch.float64
    assert set(secrets.signs.flatten().tolist()) == {-1.0, 1.0}
    assert (secrets.signs.sum(1).abs() < m).all()  # both signs occur
    assert (secrets.mixing > 0).all()  # and so each row has k >= 2 entries (equation 15)
    cancelled = torch.einsum("bm,bmk->bk", secrets.signs, secrets.mixing)
    torch.testing.assert_close(cancelled, one_hot(secrets.target, k), rtol=0, atol=1e-12)
    assert (torch.linalg.cond(secrets.blinding) <= 4 + 1e-9).all()


@sizes
def test_every_blinding_hides_how_to_decode(m: int, k: int) -> None:
    secrets = rotated(m, k, samples=DRAWS)
    undone = torch.einsum("blm,bl->bm", secrets.blinding, secrets.decoding)
    torch.testing.assert_close(undone, torch.ones_like(undone), rtol=0, atol=1e-10)
    size = secrets.decoding.abs()
    assert (size.amin(1) >= 0.15 * size.amax(1)).all()
    added = secrets.blinding.sum(1)  # the weights of the signed messages in the messages' plain sum
    assert (added.sum(1).abs() < 0.9 * added.norm(dim=1) * math.sqrt(m)).all()
    ones = torch.ones(DRAWS, dtype=torch.float64)
    torch.testing.assert_close(secrets.decoding.sum(1), ones, rtol=0, atol=1e-10)


@sizes
def test_column_weights_keep_their_range_and_even_part(m: int, k: int) -> None:
    secrets = rotated(m, k, samples=DRAWS, scale=(1.0, 3.0), eta=0.5)
    for sign, extra in ((1.0, one_hot(secrets.target, k)), (-1.0, torch.zeros(DRAWS, k).double())):
        of_sign = (secrets.signs == sign).double()
        total = torch.einsum("bm,bmk->bk", of_sign, secrets.mixing)
        assert (total - extra >= 1.0 - 1e-12).all()
        assert (total - extra <= 3.0 + 1e-12).all()
        least = 0.5 * total / of_sign.sum(1, keepdim=True)
        shares = secrets.mixing + (1 - of_sign).unsqueeze(-1) * 1e9
        assert (shares >= least.unsqueeze(1) - 1e-12).all()


def test_weights_among_messages_of_a_sign_are_dirichlet_2() -> None:
    """With two of a sign and nothing even, a share is Beta(2, 2): mean 1/2, variance 1/20."""
    with seeded_secrets():
        torch.manual_seed(0)
        secrets = rotated(3, 3, samples=20_000, eta=0.0)
    pairs = (secrets.signs == 1).sum(1) == 2
    positive = (secrets.signs == 1).double().unsqueeze(-1) * secrets.mixing
    shares = (positive / positive.sum(1, keepdim=True))[pairs][:, 0, :]
    shares = shares[shares > 0]
    assert shares.mean().item() == pytest.approx(0.5, abs=0.005)
    assert shares.var().item() == pytest.approx(0.05, abs=0.002)


def test_targets_and_signs_are_uniform() -> None:
    with seeded_secrets():
        torch.manual_seed(0)
        secrets = rotated(3, 4, samples=24_000)
    counts = torch.bincount(secrets.target, minlength=4)
    assert (counts - 6000).abs().max() < 300
    patterns = ((secrets.signs == 1).long() * torch.tensor([1, 2, 4])).sum(1)
    counts = torch.bincount(patterns, minlength=8)
    assert counts[0] == counts[7] == 0
    assert (counts[1:7] - 4000).abs().max() < 250


@sizes
@pytest.mark.parametrize("samples", [None, 4])
def test_a_linear_trunk_is_decoded_exactly(m: int, k: int, samples: int | None) -> None:
    trunk = torch.randn(6, 6, dtype=torch.float64)
    sources = torch.randn(k, 4, 5, 6, dtype=torch.float64)
    for _ in range(25):
        secret = rotated(m, k, samples=samples, affine=False)
        decoded = secret.decode(secret.encode(sources) @ trunk)
        expected = secret.target_of(sources) @ trunk
        torch.testing.assert_close(decoded, expected, rtol=0, atol=1e-10)


@sizes
@pytest.mark.parametrize("samples", [None, 4])
def test_an_affine_trunk_is_too_if_the_decoding_sums_to_one(
    m: int, k: int, samples: int | None
) -> None:
    trunk, bias = torch.randn(6, 6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    sources = torch.randn(k, 4, 5, 6, dtype=torch.float64)
    for _ in range(25):
        secret = rotated(m, k, samples=samples)
        decoded = secret.decode(secret.encode(sources) @ trunk + bias)
        expected = secret.target_of(sources) @ trunk + bias
        torch.testing.assert_close(decoded, expected, rtol=0, atol=1e-10)


def test_without_the_scaling_an_affine_trunk_is_not() -> None:
    secret = rotated(3, 3, affine=False)
    sources = torch.randn(3, 1, 2, 4, dtype=torch.float64)
    decoded = secret.decode(secret.encode(sources) + 1)
    assert (decoded - secret.target_of(sources) - 1).abs().max() > 1e-6


@pytest.mark.parametrize(("m", "k"), [(3, 3), (2, 2), (9, 3), (5, 3)])
@pytest.mark.parametrize("samples", [None, 4])
def test_all_sources_are_decoded_from_enough_messages(m: int, k: int, samples: int | None) -> None:
    trunk = torch.randn(6, 6, dtype=torch.float64)
    sources = torch.randn(k, 4, 5, 6, dtype=torch.float64)
    for _ in range(25):
        secret = rotated(m, k, samples=samples)
        outputs = secret.encode(sources) @ trunk
        decoded = secret.decode_sources(outputs)
        torch.testing.assert_close(decoded, sources @ trunk, rtol=0, atol=1e-8)
        target = secret.decode(outputs)
        torch.testing.assert_close(secret.target_of(decoded), target, rtol=0, atol=1e-8)


def test_all_sources_need_as_many_messages() -> None:
    secret = rotated(3, 4)
    with pytest.raises(ValueError, match="4 sources cannot be decoded from 3 messages"):
        secret.decode_sources(torch.zeros(3, 1, 2, 2))


def test_gradients_pass_both_ways() -> None:
    """The target's source gets the gradient of a step without mixing; the supports get none."""
    secret = rotated(3, 3)
    trunk = torch.randn(6, 6, dtype=torch.float64)
    sources = torch.randn(3, 2, 5, 6, dtype=torch.float64, requires_grad=True)
    outputs = secret.encode(sources) @ trunk
    outputs.retain_grad()
    g = torch.randn(2, 5, 6, dtype=torch.float64)
    secret.decode(outputs).backward(g)  # type: ignore[no-untyped-call]
    assert sources.grad is not None
    assert outputs.grad is not None
    expected = secret.decoding[:, None, None, None] * g
    torch.testing.assert_close(outputs.grad, expected)
    whole = torch.zeros_like(sources)
    whole[secret.target] = g @ trunk.T
    torch.testing.assert_close(sources.grad, whole, rtol=0, atol=1e-10)


def normalised(hidden: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])


@pytest.mark.parametrize(("m", "k", "bound"), [(3, 3, 0.4), (2, 2, 0.3), (3, 10, 0.7), (5, 3, 0.6)])
def test_little_distortion_decodes_a_trunk_that_normalises(m: int, k: int, bound: float) -> None:
    secrets = rotated(m, k, samples=200, max_distortion=bound)
    assert secrets.samples == 200
    assert (secrets.distortion <= bound).all()
    cancelled = torch.einsum("bm,bmk->bk", secrets.signs, secrets.mixing)
    torch.testing.assert_close(cancelled, one_hot(secrets.target, k), rtol=0, atol=1e-12)
    assert (torch.linalg.cond(secrets.blinding) <= 4 + 1e-9).all()
    sources = torch.randn(k, 200, 4, 64, dtype=torch.float64)

    def error(secret: Secret) -> float:
        truth = normalised(secret.target_of(sources))
        off = secret.decode(normalised(secret.encode(sources))) - truth
        return float((off.norm(dim=(1, 2)) / truth.norm(dim=(1, 2))).median())

    assert error(secrets) < 0.8 * error(rotated(m, k, samples=200))


def test_distortion_is_zero_where_every_message_is_the_target() -> None:
    """Equation 14 forbids it; near it, W = [[1, e], [1, -e]] and w = (1/2, 1/2)."""
    near = torch.tensor([[1.0, 0.01], [1.0, -0.01]], dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    mixing = torch.tensor([[1.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    blinding = near @ torch.linalg.inv(signs[:, None] * mixing)
    secret = Secret(signs, mixing, blinding, torch.tensor(0))
    torch.testing.assert_close(secret.decoding, torch.full_like(signs, 0.5))
    assert float(secret.distortion) == pytest.approx(1 - 1 / math.sqrt(1.0001))


def test_one_secret_with_little_distortion_is_one() -> None:
    secret = rotated(3, 3, max_distortion=0.5)
    assert secret.samples is None
    assert float(secret.distortion) <= 0.5


def test_what_no_secret_meets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr_splitmix.hiding.mixguard.sampler.MAX_DRAWS", 2)
    with pytest.raises(ValueError, match=r"max_distortion is 1e-09; of 128 secrets too few"):
        rotated(3, 3, max_distortion=1e-9)
    with pytest.raises(ValueError, match="max_distortion is 0; it must be positive, or None"):
        rotated(3, 3, max_distortion=0)


def test_samples_with_their_own_secrets_are_apart() -> None:
    secret = rotated(3, 3, samples=5)
    sources = torch.randn(3, 5, 2, 4, dtype=torch.float64)
    mixed = secret.encode(sources)
    for j in range(5):
        alone = secret.of(j)
        torch.testing.assert_close(alone.encode(sources[:, j : j + 1]), mixed[:, j : j + 1])
    assert len({tuple(row) for row in secret.weights.flatten(1).tolist()}) == 5


@pytest.mark.parametrize("samples", [None, 40])
def test_the_target_is_arranged_at_its_place(samples: int | None) -> None:
    secret = rotated(3, 4, samples=samples)
    target = torch.full((40, 3), 9)
    supports = torch.arange(3)[:, None, None].expand(3, 40, 3)
    sources = secret.arrange(target, supports)
    assert torch.equal(secret.target_of(sources), target)
    places = secret.target.expand(40)
    for j in range(40):
        others = [int(v) for v in sources[:, j, 0] if v != 9]
        assert others == [0, 1, 2]
        assert int(sources[places[j], j, 0]) == 9
    assert torch.equal(rotated(2, 2, samples=40).arrange(target, supports[:1]).sum(0), target)


def test_bfloat16_costs_about_a_percent() -> None:
    """0.7 % for messages of 8 bits, at cond(B) <= 4 without the scaling for affine trunks."""
    sources = torch.randn(3, 64, 8, 16).bfloat16()
    errors = []
    for _ in range(50):
        secret = rotated(3, 3, affine=False)
        decoded = secret.decode(secret.encode(sources))
        assert decoded.dtype == torch.bfloat16
        truth = secret.target_of(sources).float()
        errors.append(float((decoded.float() - truth).norm() / truth.norm()))
    assert torch.tensor(errors).median() < 0.015


def test_no_number_of_a_secret_is_printed() -> None:
    secret = rotated(3, 3)
    assert repr(secret) == str(secret) == f"{secret}" == "Secret(m=3, k=3)"
    assert repr(rotated(5, 3, samples=2)) == "Secret(m=5, k=3, samples=2)"
    with pytest.raises(ValueError, match=r"needs \(3, b, ...\)") as caught:
        secret.encode(torch.full((2, 1, 1, 1), 0.123))
    assert "." not in str(caught.value).replace("...", "")  # no fraction, so no weight


def test_secrets_come_from_the_system_unless_seeded() -> None:
    draws = []
    for seeded in (False, False, True, True):
        torch.manual_seed(0)
        with seeded_secrets(seeded):
            draws.append(rotated(3, 3).weights)
    assert not torch.equal(draws[0], draws[1])
    assert torch.equal(draws[2], draws[3])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"m": 1}, "m is 1 and k is 3; both must be at least 2"),
        ({"k": 1}, "m is 3 and k is 1; both must be at least 2"),
        ({"samples": 0}, "samples is 0; it must be at least 1"),
        ({"scale": (0.0, 1.0)}, r"scale is \(0.0, 1.0\)"),
        ({"scale": (2.0, 1.0)}, r"scale is \(2.0, 1.0\)"),
        ({"eta": 1.1}, "eta is 1.1; it must be between 0 and 1"),
        ({"kappa": 0.5}, "kappa is 0.5; it must be at least 1"),
        ({"kappa": math.nan}, "kappa is nan; it must be at least 1"),
        ({"m": 60}, "no secret met the constraints in 2000 draws with m=60"),
    ],
)
def test_what_cannot_be_drawn_is_said(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        rotated(**{"m": 3, "k": 3, **options})  # type: ignore[arg-type]


def test_shapes_that_do_not_fit_are_said() -> None:
    secret = rotated(3, 2, samples=4)
    for call, count in ((secret.encode, 2), (secret.decode, 3), (secret.target_of, 2)):
        with pytest.raises(ValueError, match="have shape"):
            call(torch.zeros(count + 1, 4, 2, 2))
        with pytest.raises(ValueError, match="have 3 samples; the secrets are for 4"):
            call(torch.zeros(count, 3, 2, 2))
