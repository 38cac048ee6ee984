"""Shares of somebody's own that attacks cannot take back as the server could."""

from __future__ import annotations

from flwr_splitmix.mixers import SHARES, Mixer, Share


def taken_as_sent(mixer: Mixer) -> str:
    """Return a remark on shares that attacks take as they were sent; "" if there are none.

    These change the upload and do not say, by `undo`, what their values give away.
    """
    names = [
        kind.__name__
        for kind in mixer.shares
        if kind not in SHARES and kind.undo is Share.undo and kind.upload not in _BUILT_IN
    ]
    if not names:
        return ""
    return (
        f"attacks take uploads of {', '.join(names)} as they were sent, with no use of the share's "
        "own values, which the server knows: if they can be taken back, results are too good; "
        "override `undo` (docs/own-mixer.md)"
    )


_BUILT_IN = {kind.upload for kind in SHARES}
