"""Twenty thousand damaged frames, other than those of `make test-faults`."""

from __future__ import annotations

import psutil

from tests.faults.test_damaged_frames import refusals

FRAMES = range(100_000, 120_000)


def test_a_line_survives_twenty_thousand_damaged_frames() -> None:
    before = psutil.Process().memory_info().rss
    refused = refusals(FRAMES)
    print(f"{refused} of {len(FRAMES)} damaged frames ended their line, each with a sentence")
    assert refused > len(FRAMES) // 2
    assert psutil.Process().memory_info().rss - before < 100e6
