"""HTML elements; all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from flwr_splitmix.runs.reports.words import NOTHING


def tag(name: str, *content: str, **attributes: str) -> str:
    """Return an element; content is markup, attribute values are escaped (`a_b` is a-b)."""
    attribute_markup = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value
    )
    return f"<{name}{attribute_markup}>{''.join(content)}</{name}>"


def paragraph(text: str, class_: str = "") -> str:
    """Return text as an escaped paragraph."""
    return tag("p", escape(text), class_=class_)


def tiles(facts: Iterable[tuple[str, str]]) -> str:
    """Return names with values as tiles; those without a value are left out."""
    return tag(
        "dl",
        *(
            tag("div", tag("dt", escape(name)), tag("dd", escape(value)))
            for name, value in facts
            if value and value != NOTHING
        ),
        class_="tiles",
    )


def grid(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", tall: bool = False
) -> str:
    """Return a table of text; a column whose heading starts with ">" holds numbers."""
    numbers = ["number" if heading.startswith(">") else "" for heading in headings]

    def line(kind: str, cells: Sequence[str]) -> str:
        return tag(
            "tr",
            *(
                tag(kind, escape(cell), class_=class_, scope="col" if kind == "th" else "")
                for cell, class_ in zip(cells, numbers, strict=True)
            ),
        )

    head = tag("thead", line("th", [heading.removeprefix(">") for heading in headings]))
    body = tag("tbody", *(line("td", row) for row in rows))
    title = tag("caption", escape(caption)) if caption else ""
    # Focusable, so that it can be scrolled with the keyboard.
    return tag(
        "div", tag("table", title, head, body), class_="scroll tall" if tall else "scroll",
        tabindex="0", role="region", aria_label=caption or headings[0].removeprefix(">"),
    )  # fmt: skip


def bullets(lines: Iterable[str]) -> str:
    """Return lines of text as a list."""
    return tag("ul", *(tag("li", escape(line)) for line in lines))


def folded(title: str, *content: str) -> str:
    """Return content that is shown when its title is clicked."""
    return tag("details", tag("summary", escape(title)), *content)
