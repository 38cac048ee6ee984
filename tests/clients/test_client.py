"""Client: which of its methods a server may call."""

from __future__ import annotations

from typing import Any

import pytest

from flwr_splitmix.clients import SplitClient, UShapeClient, exchange


@pytest.mark.parametrize(("kind", "name"), [(SplitClient, "step"), (UShapeClient, "encode_test")])
def test_who_overrides_an_exchange_is_told_to_mark_it(kind: type, name: str) -> None:
    def override(self: Any, **arguments: Any) -> dict[str, Any]:
        return {}

    sentence = rf"Mine\.{name} overrides an exchange.*decorate it with @exchange too"
    with pytest.raises(TypeError, match=sentence):
        type("Mine", (kind,), {name: override})
    marked = type("Mine", (kind,), {name: exchange(override)})
    assert issubclass(marked, kind)


def test_an_override_from_beside_is_seen_too() -> None:
    class Beside:
        def decode(self, **arguments: Any) -> dict[str, Any]:
            return {}

    with pytest.raises(TypeError, match=r"Mixed\.decode overrides an exchange"):
        type("Mixed", (Beside, UShapeClient), {})
