"""Fixture: certificates for runs over the stream."""

from __future__ import annotations

from typing import Any

import pytest

from flwr_splitmix.sandbox.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls(files: Certificates) -> dict[str, Any]:
    return {
        "address": "127.0.0.1:0",
        "certificate": files.certificate,
        "key": files.key,
        "ca": files.ca,
    }
