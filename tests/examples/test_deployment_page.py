"""docs/deployment.md names keys, options, log lines, columns and figures that there are."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.node.keys import INDEX, OPTIONAL
from flwr_splitmix.links.node.state import CONTEXT_BYTES, FORGET_DAYS, FORGET_UNNAMED_DAYS
from flwr_splitmix.links.stream.protocol import (
    NOTICE_SECONDS,
    PING_SECONDS,
    UNANSWERED_SECONDS,
    UNCONFIRMED_SECONDS,
)
from flwr_splitmix.links.stream.session import MAX_SILENCE_SECONDS
from flwr_splitmix.observers import metrics

ROOT = Path(__file__).parents[2]
APP = ROOT / "apps" / "vision"
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
TEXTS = {"dataset", "test-dataset"}
NODE_KEYS = {INDEX, "num-partitions", *OPTIONAL, *TEXTS}
COMMANDS = {"audit-log", "flower-supernode"}


def blocks(language: str) -> list[str]:
    """Return the page's code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def in_app() -> dict[str, Any]:
    loaded = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
    config: dict[str, Any] = loaded["tool"]["flwr"]["app"]["config"]
    return config


def test_every_key_that_is_named_exists() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)(?: ?=[^`]*)?`", prose))
    assert named >= NODE_KEYS - {"dataset", "delta"}
    assert {"link-address", "link-advertise", "link-client-ca", "wire-dtype"} <= named
    assert named <= NODE_KEYS | in_app().keys() | COMMANDS


def test_the_node_configurations_have_the_keys_of_a_node() -> None:
    configurations = re.findall(r'--node-config "(.*?)"', PAGE.replace("\\\n", ""))
    assert len(configurations) == 5
    for text in configurations:
        keys = set(re.findall(r"([\w-]+)=", text))
        assert {"partition-id", "num-partitions"} <= keys <= NODE_KEYS


def test_the_app_takes_the_keys_of_the_link() -> None:
    connection, link, via = map(tomllib.loads, blocks("toml"))
    assert set(connection["superlink"]["server"]) == {"address", "root-certificates"}
    read = VisionConfig.read({**in_app(), **link})
    assert read.link == "auto"
    # What nodes dial is what the certificate of the page is made for.
    host = link["link-advertise"].partition(":")[0]
    assert f"subjectAltName=DNS:{host}," in PAGE
    assert VisionConfig.read({**in_app(), **via}).evaluation_kind == "none"
    for text in re.findall(r'--run-config "(.*?)"', PAGE):
        VisionConfig.read({**in_app(), **tomllib.loads(re.sub(r" (?=[\w-]+=)", "\n", text))})


@pytest.mark.slow
@pytest.mark.parametrize("program", ["flower-superlink", "flower-supernode"])
def test_flower_has_the_options_that_are_given(program: str) -> None:
    pytest.importorskip("flwr", minversion="1.35", reason="SuperNodes need Flower 1.35")
    help_text = subprocess.run(
        [str(Path(sys.executable).parent / program), "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    commands = re.findall(rf"{program} ((?:[^\n]*\\\n)*[^\n]*)", "\n".join(blocks("(?:sh|ini)")))
    options = {option for command in commands for option in re.findall(r" (--[\w-]+)", command)}
    assert len(options) >= 5
    assert {option for option in options if option not in help_text} == set()


def test_the_lines_to_watch_are_logged() -> None:
    section = PAGE[PAGE.index("## Monitoring") : PAGE.index("## Failures")]
    lines = re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE)
    assert len(lines) == 26
    folders = (
        ROOT / "flwr_splitmix" / part
        for part in ("clients", "links", "runs", "server", "strategies")
    )
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    files.append(ROOT / "flwr_splitmix" / "words.py")
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # sentences that stand on two lines
    for line in lines:
        parts = re.split(
            r"(?:client )?\d+|\.{3}|server\.example|mixer\.example|StreamLink|[():,]", line
        )
        fixed = [part.strip() for part in parts if len(part.strip()) > 5]
        assert all(part in source for part in fixed), line
        assert fixed or line.startswith("link: ")


def test_the_columns_are_those_of_the_metrics() -> None:
    columns = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", PAGE))
    columns -= {
        "client_fn",
        "num_classes",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "spectral_norm",
    }
    assert len(columns) >= 4
    assert all(f'"{column}"' in inspect.getsource(metrics) for column in columns)


def test_seconds_megabytes_and_days_are_the_codes_own() -> None:
    parameters = inspect.signature(StreamLink).parameters
    page = " ".join(PAGE.split())
    for phrase in (
        f"is dialled again, for {parameters['reattach_timeout'].default:g} s;",
        f"within {PING_SECONDS + UNANSWERED_SECONDS} s, since a ping every {PING_SECONDS} s must "
        f"be answered within {UNANSWERED_SECONDS} s",
        f"knows after {PING_SECONDS + UNCONFIRMED_SECONDS} s that",
        f"20 s start when that ends, at the latest {NOTICE_SECONDS} s after the break",
        f"keeps its nodes for {MAX_SILENCE_SECONDS / 3600:g} hours",
        f"`attach-timeout` ({in_app()['attach-timeout']:g} s)",
        f"`step-timeout` ({in_app()['step-timeout']:g} s)",
        f"up to {CONTEXT_BYTES // 10**6} MB,",
        f"taken part in for {FORGET_DAYS:g} days",
        f"delete its states after {FORGET_UNNAMED_DAYS:g} days",
    ):
        assert phrase in page, phrase
