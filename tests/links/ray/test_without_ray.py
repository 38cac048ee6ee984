"""Without Ray, the link names the extra to install, and can be closed."""

from __future__ import annotations

import sys

import pytest

from flwr_splitmix.links import RayLink
from flwr_splitmix.links.link import LinkError


def test_the_extra_is_named_and_closing_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # an import then fails
    link = RayLink()
    with pytest.raises(LinkError, match=r"pip install '\.\[simulation\]'"):
        link.open(None)
    link.close()
