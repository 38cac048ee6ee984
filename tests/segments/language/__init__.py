"""Tests of cut language models; they need the extra `language`."""

import pytest

for package in ("transformers", "peft", "accelerate"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra 'language')")
