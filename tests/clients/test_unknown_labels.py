"""Labels that the server has no class for: under noise they leave as noise alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flwr_splitmix.mixers import NoisyShare, PatchShare
from tests.clients.guarded import NOISE, ORDER, L, N, ask, client_of

INNER = PatchShare(lam=0.5, patches=N, seed=1, start=0, stop=N // 2)


def of_classes(classes: int) -> NoisyShare:
    return NoisyShare.around(INNER, NOISE, classes)


def test_each_client_warns_once_that_labels_are_sent_as_noise_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Logged in every step, and of no client, it would be 45 lines in two rounds."""
    for index in range(2):
        client = client_of(replace(ORDER, client=index))
        for server_round in (1, 2):
            client.attach(replace(ORDER, client=index, server_round=server_round), None)
            for number in range(3):
                ask(client, number, of_classes(L - 1))
    warnings = [record.getMessage() for record in caplog.records if "noise alone" in record.message]
    warning = f"labels outside 0..{L - 2} are sent as noise alone: "
    assert [line.split(warning)[0] for line in warnings] == ["client 0: ", "client 1: "]


def test_labels_of_known_classes_need_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    client = client_of()
    for number in range(3):
        ask(client, number, of_classes(L))
    assert "noise alone" not in caplog.text
