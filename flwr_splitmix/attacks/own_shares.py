"""Users' own shares that attacks cannot take back as the server could."""

from __future__ import annotations

from collections.abc import Iterable

from flwr_splitmix.mixers import SHARES, Share


def taken_as_sent(kinds: Iterable[type[Share]]) -> str:
    """Return a remark on kinds of shares that attacks take as they were sent; "" for none.

    These change the upload, and have no `undo` that uses what their values give away.
    """
    names = sorted(
        kind.__name__ for kind in kinds if kind.undo is Share.undo and kind.upload not in _BUILT_IN
    )
    if not names:
        return ""
    return (
        f"attacks take uploads of {', '.join(names)} as they were sent, with no use of the share's "
        "own values, which the server knows: if they can be taken back, results are too good; "
        "override `undo` (docs/own-mixer.md)"
    )


_BUILT_IN = {kind.upload for kind in SHARES}
