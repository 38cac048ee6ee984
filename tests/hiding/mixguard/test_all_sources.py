"""All-sources gradients: of rank k, each support as loud as asked."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.hiding import MixGuard
from flwr_splitmix.hiding.mixguard import balance_gradients, draw_secret
from flwr_splitmix.hiding.mixguard.mixtures import as_mixtures
from flwr_splitmix.scoring.texts import text_loss
from tests.hiding.mixguard.clients import batch_of, client_of


@pytest.mark.parametrize("samples", [None, 2])
@pytest.mark.parametrize("strength", [0.1, 1.0])
def test_supports_are_as_loud_as_asked(samples: int | None, strength: float) -> None:
    secret = draw_secret(5, 3, samples=samples)
    gradients = torch.randn(3, 2, 4, 6, dtype=torch.float64)
    gradients *= torch.tensor([1.0, 100.0, 1e-3])[:, None, None, None]
    balanced = balance_gradients(secret, gradients, strength=strength)
    assert torch.equal(secret.target_of(balanced), secret.target_of(gradients))
    rows = secret.source_decoding.expand(2, 3, 5)
    for j in range(2):
        place = int(secret.target.expand(2)[j])
        parts = rows[j].norm(dim=1) * balanced[:, j].flatten(1).norm(dim=1)
        for i in set(range(3)) - {place}:
            assert (parts[i] / parts[place]).item() == pytest.approx(strength)
        cosine = torch.cosine_similarity(balanced[:, j].flatten(1), gradients[:, j].flatten(1))
        torch.testing.assert_close(cosine, torch.ones(3, dtype=torch.float64))


def test_the_messages_gradients_have_rank_k() -> None:
    secret = draw_secret(5, 3)
    outputs = torch.randn(5, 2, 4, 6, dtype=torch.float64, requires_grad=True)
    sources = secret.decode_sources(outputs)
    sources.backward(balance_gradients(secret, torch.randn_like(sources)))  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    assert int(torch.linalg.matrix_rank(outputs.grad.flatten(1))) == 3


def test_a_support_without_a_gradient_stays_without() -> None:
    secret = draw_secret(3, 3)
    gradients = secret.arrange(torch.ones(2, 4, 6), torch.zeros(2, 2, 4, 6))
    assert torch.equal(balance_gradients(secret, gradients), gradients)


def test_the_loss_that_is_reported_is_the_texts_own() -> None:
    """With the public loss in it, it would be 11.18 where an evaluation gives 3.18."""
    client = client_of(gradients="all-sources", calibration_epochs=1)
    hiding, batch = client.hiding, batch_of()
    assert isinstance(hiding, MixGuard)
    assert hiding.calibration is not None
    for weights in hiding.calibration.calibrator.parameters():
        torch.nn.init.normal_(weights)  # at first it corrects nothing
    sent = hiding.obfuscate(batch)
    hidden = hiding.recover([m.detach() for m in sent.messages], sent).requires_grad_()
    loss = hiding.loss(hidden, sent)
    assert torch.equal(loss, text_loss(hiding.logits(hidden, sent), batch.labels))
    (gradient,) = torch.autograd.grad(loss, hidden)
    pulled = 2 * (hidden - hiding.calibration(hidden).detach())
    target = as_mixtures(sent).secret.arrange(torch.ones(4, 9, 5), torch.zeros(2, 4, 9, 5)) > 0
    torch.testing.assert_close(gradient[~target], pulled[~target])
    assert pulled[~target].any()


def test_bad_inputs_are_said() -> None:
    gradients = torch.ones(3, 2, 4, 6)
    with pytest.raises(ValueError, match="strength is -1"):
        balance_gradients(draw_secret(3, 3), gradients, strength=-1)
    with pytest.raises(ValueError, match="all-sources gradients need m >= k"):
        balance_gradients(draw_secret(2, 3), gradients)
