"""docs/messages.md has what the program says; `splitmix run` says the same, before Flower."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.apps.app_config import APPS
from tests.cli.messages import BEGIN, END, MISTAKES, Mistake, escaped, said

PAGE = APPS.parent / "docs" / "messages.md"


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """Return the page's sentences by mistake."""
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    lines = [line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:]]
    return {cells[0]: " | ".join(cells[2:]) for cells in lines}


def test_the_page_has_every_mistake(printed: dict[str, str]) -> None:
    assert list(printed) == [mistake.what for mistake in MISTAKES]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_the_page_says_what_the_program_says(mistake: Mistake, printed: dict[str, str]) -> None:
    status, sentence = said(mistake)
    assert status == (0 if mistake.ok else 1)
    assert sentence, "nothing was said"
    assert escaped(sentence) == printed[mistake.what], "python -m tests.cli.messages renews it"


@pytest.mark.parametrize(
    "mistake",
    [m for m in MISTAKES if m.what in {"a key that is not there", "a value out of range"}],
    ids=lambda mistake: mistake.what,
)
def test_splitmix_run_says_it_before_flower_starts(
    mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = subprocess.Popen

    def started(arguments: Any, *others: Any, **options: Any) -> Any:
        assert "check" in arguments, f"a process was started: {arguments}"
        return popen(arguments, *others, **options)

    monkeypatch.setattr(subprocess, "Popen", started)
    assert said(mistake, "run") == said(mistake)
