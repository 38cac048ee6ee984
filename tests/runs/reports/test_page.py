"""A report is one page that loads nothing and says what the run's files say."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.reports.comparison import compare
from flwr_splitmix.runs.reports.page import page
from flwr_splitmix.runs.selection import select
from tests.toy_runs import CLIENTS, FAILING, ROUNDS, SECRET

VOID = {"meta", "use", "path", "rect"}


class Reader(HTMLParser):
    """Text, tables, ids and references of a page; an element that is not closed is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tables: dict[str, list[list[str]]] = {}
        self.ids: list[str] = []
        self.references: list[str] = []
        self.elements: list[str] = []
        self._table: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.note(tag, attrs)
        if tag != "meta":
            self.open.append(tag)
        if tag == "table":
            self._table = []
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.note(tag, attrs)

    def note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            elif name in ("src", "href", "xlink:href", "action", "data"):
                self.references.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "table":
            self.tables[" ".join(self._table[0])] = self._table

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title"):
            self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self._table[-1][-1] += data

    def table(self, *columns: str) -> list[list[str]]:
        (rows,) = (rows for name, rows in self.tables.items() if all(c in name for c in columns))
        return rows[1:]


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def one(toy_home: Path) -> tuple[str, Run]:
    (run,) = select(["noisy"], toy_home)
    hides = {"DPCutMixSL": "what an epsilon says"}
    return page(compare([run]), hides=hides), run


def test_a_page_loads_nothing(one: tuple[str, Run]) -> None:
    html, _ = one
    reader = read(html)
    assert {reference[:1] for reference in reader.references} == {"#"}
    assert "://" not in html
    assert not {"script", "link", "iframe", "img", "object"} & set(reader.elements)
    assert not re.search(r"@import|url\((?!#)", html)


def test_references_within_the_figures_lead_somewhere_and_ids_are_unique(
    one: tuple[str, Run],
) -> None:
    html, _ = one
    reader = read(html)
    assert len(set(reader.ids)) == len(reader.ids)
    used = {r[1:] for r in reader.references} | set(re.findall(r"url\(#([^)]+)\)", html))
    assert len(used) > 10
    assert used <= set(reader.ids)


def test_the_page_is_light_or_dark_as_the_browser_is(one: tuple[str, Run]) -> None:
    html, _ = one
    assert "prefers-color-scheme: dark" in html
    assert "currentColor" in html
    assert "var(--line-0)" in html
    assert "#010203" not in html
    assert "#0072b2" not in html.partition("</style>")[2], "a line in a colour of its own"


def test_every_round_and_what_it_cost_is_there(one: tuple[str, Run]) -> None:
    html, run = one
    rows = read(html).table("round", "eval loss")
    assert [row[0] for row in rows] == [str(n) for n in range(1, ROUNDS + 1)]
    assert [row[1] for row in rows] == [f"{row['loss']:.4f}" for row in run.rows]
    assert [row[3] for row in rows] == [f"{100 * row['accuracy']:.1f} %" for row in run.rows]


def test_the_client_that_failed_is_named_with_its_reason_as_text(one: tuple[str, Run]) -> None:
    html, _ = one
    reader = read(html)
    assert f"client {FAILING}, once; newest: round 2: {SECRET}" in reader.text
    assert SECRET not in html
    rows = reader.table("slowest of its round")
    assert sorted(row[0] for row in rows) == [str(client) for client in range(CLIENTS)]
    assert {row[0]: row[1] for row in rows}[str(FAILING)] == str(ROUNDS - 1)


def test_what_the_server_saw_adds_up_to_the_bytes_of_the_run(one: tuple[str, Run]) -> None:
    html, run = one
    kinds = run.record["messages"]["kinds"]
    rows = read(html).table("what it holds")
    assert len(rows) == len(kinds)
    assert any(
        "smashed: float64 (4, " in row[1] and "labels: float64 (4, 3)" in row[1] for row in rows
    )
    for direction, column in (("up", "uplink_bytes"), ("down", "downlink_bytes")):
        nbytes = sum(
            k["bytes"] for k in kinds if (k["phase"], k["direction"]) == ("train", direction)
        )
        assert nbytes == sum(row[column] for row in run.rows)


def test_the_epsilon_stands_with_its_words(one: tuple[str, Run]) -> None:
    html, run = one
    text = read(html).text
    words = (run.summary or {})["privacy"]
    assert "epsilon" in words
    assert "Not covered" in words
    assert words in text
    assert "What the method hides from the server: what an epsilon says." in text


def test_configuration_and_versions_are_there(one: tuple[str, Run]) -> None:
    html, run = one
    reader = read(html)
    assert {row[0] for row in reader.table("key value")} == run.config.keys()
    assert f"torch {(run.summary or {})['versions']['torch']}" in reader.text


def test_several_runs_are_compared_first_and_mixtures_shown_if_asked_for(toy_home: Path) -> None:
    runs = select(["mixed", "plain"], toy_home)
    reader = read(page(compare(runs), mixtures=True))
    assert [row[:2] for row in reader.table("strategy", "runs")] == [
        ["CutMixSL", "2"],
        ["PSL", "1"],
    ]
    assert all(run.id in reader.text for run in runs)
    assert len(set(reader.ids)) == len(reader.ids)
    assert reader.text.count("The first mixtures of round 3") == 2
    assert "Mixture of client 0 at ratio" in reader.text
    with pytest.raises(RunError, match="keep-mixtures=4"):
        page(compare(select(["plain"], toy_home)), mixtures=True)


def test_a_run_that_has_not_begun_and_one_that_failed_have_pages_too(tmp_path: Path) -> None:
    run = Run.create({"strategy": "PSL", "label": "<x>"}, name="x", home=tmp_path)
    run.note_failure("LinkError: 0 clients are left")
    html = page(compare([run]))
    text = read(html).text
    assert "<x>" not in html
    assert "It ended with an error: LinkError: 0 clients are left" in text
    assert "No round is finished yet." in text
    assert "No round was evaluated." in text


def test_without_matplotlib_the_extra_is_named(
    toy_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RunError, match=r"pip install '\.\[report\]'"):
        page(compare(select(["plain"], toy_home)))
