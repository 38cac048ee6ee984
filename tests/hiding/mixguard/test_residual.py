"""Residual decoding: what a pre-norm trunk adds is decoded better, and gradients stay exact."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.clients import MixGuardClient, Order
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding.mixguard import MixGuardOptions, ResidualKernel, draw_secret
from flwr_splitmix.hiding.mixguard.mixtures import Mixtures
from flwr_splitmix.hiding.mixguard.residual import DEGREE
from flwr_splitmix.strategies import MixGuard
from flwr_splitmix.testing.laws import TextToy, check_ushape_equals_whole
from flwr_splitmix.testing.toy_texts import ToyTrunk

WIDTH, TEXTS, TOKENS = 24, 6, 8


def trunk(hidden: Tensor) -> Tensor:
    """Return two pre-norm blocks' output."""
    weights = torch.randn(2, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    for weight in weights * 1.5 / WIDTH**0.5:
        normal = torch.nn.functional.layer_norm(hidden, (WIDTH,))
        hidden = hidden + torch.nn.functional.gelu(normal @ weight)
    return hidden


def test_the_kernel_decodes_a_pre_norm_trunk_better_than_the_sum() -> None:
    torch.manual_seed(0)
    kernel, mask = ResidualKernel(), torch.ones(TEXTS, TOKENS)
    ratios: list[Tensor] = []
    for batch in range(
        56
    ):  # secrets come from the system's generator, so many batches are averaged
        secret = draw_secret(3, 3)
        sources = torch.randn(3, TEXTS, TOKENS, WIDTH, dtype=torch.float64)
        target, messages = secret.target_of(sources), secret.encode(sources)
        outputs, truth = trunk(messages), trunk(target)
        local, added = kernel.decode(outputs, messages, target, mask, secret)
        if batch >= 8:
            summed, better = (
                (decoded - truth).norm() for decoded in (secret.decode(outputs), local + added)
            )
            ratios.append(better / summed)
        elif batch == 0:  # nothing is known yet: the secret's own decoding
            torch.testing.assert_close(local + added, secret.decode(outputs))
        kernel.learn(messages.unbind(), outputs.unbind(), target, truth, mask)
    # In twelve runs the geometric mean over 24 batches is 0.53 to 0.74.
    assert float(torch.stack(ratios).log().mean().exp()) < 0.9
    assert kernel.coefficients is not None
    assert (kernel.coefficients >= 0).all()


def test_bfloat16_is_rounded_once() -> None:
    """Only the result, as of the paper's decoding, not weights, products and sums each."""
    torch.manual_seed(0)
    options = MixGuardOptions(secret_tokens=0, max_length=32, decoding="residual")
    toy = TextToy(kind=MixGuardClient, clients=1, options=options, width=64, dropout=0.0)
    (client,) = toy.clients_for()
    client.attach(Order(0, 7, 1, 1), None)
    sent = client.hiding.obfuscate(
        MaskedBatch.of(toy.texts(0, 4).batch(np.arange(4)), client.device)
    )
    assert isinstance(sent, Mixtures)
    sent.messages = [message.bfloat16() for message in sent.messages]
    sent.hidden = sent.hidden.bfloat16()
    outputs = [(message + 0.1 * message.tanh()).bfloat16() for message in sent.messages]
    decoded = client.hiding.recover(outputs, sent)
    assert decoded.dtype == torch.bfloat16
    assert sent.local is not None
    assert sent.local.dtype == torch.bfloat16
    sent.messages = [message.double() for message in sent.messages]
    sent.hidden = sent.hidden.double()
    exact = client.hiding.recover([output.double() for output in outputs], sent)
    rounding = (exact.bfloat16() - exact).norm()
    assert (decoded - exact).norm() < 1.01 * rounding


def test_what_was_learned_survives() -> None:
    kernel, again = ResidualKernel(), ResidualKernel()
    points = torch.randn(3, 2, 4, WIDTH).double()
    kernel.learn(points[:2].unbind(), trunk(points[:2]).unbind(), points[2], trunk(points[2]),
                 torch.ones(2, 4))  # fmt: skip
    again.restore(kernel.state())
    assert again.coefficients is not None
    assert kernel.coefficients is not None
    assert len(again.coefficients) == DEGREE + 1
    assert torch.equal(again.coefficients, kernel.coefficients)


class SkipTrunk(ToyTrunk):
    """The toy's trunk with a residual connection around it."""

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Add to the hidden states."""
        return hidden + super().forward(hidden, mask)


class SkipToy(TextToy):
    """The toy with that trunk."""

    def server(self) -> ToyTrunk:
        """Make the trunk."""
        trunk = SkipTrunk(self.width, self.dropout, affine=self.affine).double()
        trunk.load_state_dict(super().server().state_dict())
        return trunk


def learned_kernel() -> ResidualKernel:
    kernel = ResidualKernel()
    torch.manual_seed(0)
    points = torch.randn(4, 5, 7, WIDTH).double()
    kernel.learn(points[:3].unbind(), trunk(points[:3]).unbind(), points[3], trunk(points[3]),
                 torch.ones(5, 7))  # fmt: skip
    return kernel


class KnowingClient(MixGuardClient):
    """A client without a calibrator whose kernel has been learned."""

    def __init__(self, *parts: object, **options: object) -> None:
        super().__init__(*parts, **options)  # type: ignore[arg-type]
        self.hiding.kernel = learned_kernel()


def test_heads_get_the_whole_gradient_though_a_part_of_it_stays_at_the_client() -> None:
    """The law "split equals whole": one graph through head, trunk, tail and the shortcut."""
    options = MixGuardOptions(
        secret_tokens=1, max_length=32, calibration_epochs=0, perturbation=None
    )
    toy = SkipToy(kind=KnowingClient, clients=2, options=options, dropout=0.2)
    check_ushape_equals_whole(MixGuard, toy)


def test_a_run_with_residual_decoding_learns_its_kernel_from_public_texts() -> None:
    options = MixGuardOptions(
        secret_tokens=1, max_length=32, calibration_epochs=1, decoding="residual"
    )
    toy = SkipToy(kind=MixGuardClient, clients=1, options=options, dropout=0.0)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=2)
    (client,) = toy.clients_for(strategy)
    assert isinstance(client, MixGuardClient)
    strategy.fit([client], 1)
    assert client.hiding.kernel is not None
    assert client.hiding.kernel.coefficients is not None
    tensors, meta = client.hiding.state()
    assert {"kernel.normal", "kernel.moment"} <= tensors.keys()
    assert len(meta["leaks"]) > 0
