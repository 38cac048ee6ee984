"""A client's process: build head and tail, and look at every weight that there is.

`python memory_of_parts.py SOURCE...` where a source is a model's name or a folder; it says "ok", or
which shapes are there besides.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from torch import nn

from flwr_splitmix.segments.language import LanguageCut, build_language_parts
from tests.segments.language.tiny_models import LABELS, config_of


def weights() -> list[nn.Parameter]:
    """Return the weights of this process that have memory."""
    gc.collect()
    return [t for t in gc.get_objects() if type(t) is nn.Parameter and not t.is_meta]


def main() -> None:
    """Build the parts of each source, one after the other."""
    assert not weights()
    for source in sys.argv[1:]:
        parts = build_language_parts(
            source if Path(source).is_dir() else config_of(source),
            LanguageCut(1, 1),
            parts=("head", "tail"),
            num_labels=LABELS,
            dtype="float64",
        )
        assert parts.trunk is None
        assert parts.head is not None
        assert parts.tail is not None
        own = {id(w) for part in (parts.head, parts.tail) for w in part.parameters()}
        other = [tuple(w.shape) for w in weights() if id(w) not in own]
        assert own, source
        assert not other, f"{source} also allocated {other}"
        del parts
    print("ok")


if __name__ == "__main__":
    main()
