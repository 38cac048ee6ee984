"""What MixGuard's client may choose: its supports, its mask, its bound on leaks, refinement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.clients import ClientError, MixGuardClient, TextSet
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding.mixguard import MixGuardOptions, measured_leak
from flwr_splitmix.strategies import MixGuard
from tests.hiding.mixguard.clients import ORDER, TOY, batch_of, client_of


def test_supports_can_be_a_set_apart_from_the_texts_of_calibration() -> None:
    adapted = replace(TOY, options=replace(TOY.options, calibration_epochs=1, support_texts=3))
    client = adapted.clients_for(repeatable_secrets=False)[0]
    assert isinstance(client, MixGuardClient)
    client.attach(ORDER, None)
    public = [tuple(text.tolist()) for text in TOY.texts(20_000, TOY.examples).texts]

    def rows(ids: Tensor, mask: Tensor) -> set[tuple[int, ...]]:
        return {tuple(row[real.bool()].tolist()) for row, real in zip(ids, mask, strict=True)}

    supports: set[tuple[int, ...]] = set()
    calibrated: set[tuple[int, ...]] = set()
    for _ in range(40):
        drawn = client.hiding._support(4)
        supports |= rows(drawn.ids, drawn.mask)
        batch = client.hiding.public_batch()
        assert batch is not None
        calibrated |= rows(batch.inputs, batch.mask)
    assert supports == set(public[:3])
    assert calibrated == set(public[3:])
    with pytest.raises(ClientError, match="support_texts is 12, of 12 public texts; at least one"):
        client_of(support_texts=TOY.examples)


def test_refinement_without_stage_one_calibrates_in_training_alone() -> None:
    options = MixGuardOptions(
        secret_tokens=0, max_length=32, calibration_epochs=0, refine_only=True, refine_every=2
    )
    toy = replace(TOY, options=options)
    strategy = MixGuard(toy.server(), device="cpu", steps_per_round=4)
    (client,) = toy.clients_for(strategy)
    assert isinstance(client, MixGuardClient)
    strategy.fit([client], 1)
    assert client.hiding.calibration is not None
    assert len(client.hiding._errors) == 2
    assert all(up.weight.abs().max() > 0 for up in _ups(client))


def _ups(client: MixGuardClient) -> list[Any]:
    assert client.calibration is not None
    return [block.up for block in client.calibration.calibrator.blocks]


def test_a_mask_of_the_targets_own_costs_nothing_where_a_union_does() -> None:
    """The trunk looks back over real places: filler behind a text's end may not be among them."""
    toy = replace(TOY, affine=True)
    trunk = toy.server()
    for mask, exact in (("union", False), ("target", True)):
        client = client_of(toy, mask=mask)
        sent = client.hiding.obfuscate(batch_of())
        outputs = [trunk(message, sent.mask) for message in sent.messages]
        plain = trunk(sent.hidden, sent.own_mask)
        # A reader of the last real place, such as a trunk that looks both ways, sees the filler.
        reversed_ = [trunk(m.flip(1), sent.mask.flip(1)).flip(1) for m in sent.messages]
        back = trunk(sent.hidden.flip(1), sent.own_mask.flip(1)).flip(1)
        real = sent.own_mask.bool()
        torch.testing.assert_close(client.hiding.recover(outputs, sent)[real], plain[real])
        off = (client.hiding.recover(reversed_, sent)[real] - back[real]).abs().max()
        assert (float(off.detach()) < 1e-9) == exact
        assert torch.equal(sent.mask, sent.own_mask) == exact


def test_a_mask_of_the_targets_own_goes_with_texts_that_are_padded_further() -> None:
    toy = replace(TOY, affine=True)
    client, trunk = client_of(toy, mask="target"), toy.server()
    texts, losses = TOY.texts(0, 4).texts, []
    for pad_to in (None, 20):
        padded = TextSet(texts, texts, pad_to=pad_to).batch(np.arange(4))
        sent = client.hiding.obfuscate(MaskedBatch.of(padded, torch.device("cpu")))
        outputs = [trunk(message, sent.mask) for message in sent.messages]
        losses.append(client.hiding.loss(client.hiding.recover(outputs, sent), sent))
    torch.testing.assert_close(losses[1], losses[0])


def test_no_batch_leaks_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(sampler="skewed", support_scale=2.0, max_leak=0.9)
    for _ in range(20):
        sent = client.hiding.obfuscate(batch_of())
        assert float(measured_leak(sent.messages, sent.hidden).mean()) <= 0.9
    # By the weights a secret may pass, and leak all the same: texts have much in common.
    monkeypatch.setattr(
        "flwr_splitmix.hiding.mixguard.protocol.measured_leak", lambda *_: torch.ones(4)
    )
    with pytest.raises(ValueError, match=r"max_leak is 0\.9, but 64 secrets in a row leaked more"):
        client.hiding.obfuscate(batch_of())
