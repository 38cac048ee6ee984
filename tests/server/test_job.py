"""What the arguments of `start` become in a run's messages."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord

from flwr_splitmix.server.job import message_config


def test_entries_that_no_client_fn_sees_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """`start(train_config=...)` was taken without a word, as a Flower app's clients read it."""
    entries = ConfigRecord({"lr": 0.1, "epochs": 2})
    assert message_config("train_config", entries) is entries
    assert "train_config (epochs, lr) reaches mods and the aggregator, but no" in caplog.text


@pytest.mark.parametrize("nothing", [None, ConfigRecord()])
def test_no_entries_no_words(
    nothing: ConfigRecord | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert dict(message_config("train_config", nothing)) == {}
    assert not caplog.text
