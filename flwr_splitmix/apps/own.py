"""Check of a user's own app: its components, and the client that it makes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from flwr_splitmix.apps.project import Project
from flwr_splitmix.apps.report import Report
from flwr_splitmix.client_app import SplitClientApp
from flwr_splitmix.clients import SplitClient
from flwr_splitmix.data.batches import fetch

KINDS = {"serverapp": ServerApp, "clientapp": ClientApp}


def check(
    project: Project,
    values: Mapping[str, Any],
    report: Report,
    setting: Mapping[str, float] | None,
) -> None:
    """Import the app's components, make its first client, and report the findings.

    There is no table of cuts, as the server's part of such an app is unknown until it runs.
    """
    with _on_path(project.folder):
        components = {}
        for kind, expected in KINDS.items():
            place = project.components[kind]
            try:
                module, _, attribute = place.partition(":")
                components[kind] = getattr(importlib.import_module(module), attribute)
            except Exception as error:  # a user's module may raise anything on import
                report.problems.append(f"{kind} {place!r} cannot be imported: {_said(error)}")
                return
            if not isinstance(components[kind], expected):
                report.problems.append(f"{kind} {place!r} is no {expected.__name__}")
                return
        client_app = components["clientapp"]
        if not isinstance(client_app, SplitClientApp):
            report.problems.append(
                f"clientapp {project.components['clientapp']!r} is no SplitClientApp, so no "
                "strategy of flwr-splitmix can train it; make it SplitClientApp(client_fn)"
            )
            return
        try:
            _look_at_client(client_app, values, report)
        except Exception as error:  # a user's client_fn may raise anything
            report.problems.append(f"client_fn raised {_said(error)}")


def _look_at_client(app: SplitClientApp, values: Mapping[str, Any], report: Report) -> None:
    context = Context(
        run_id=0,
        node_id=1,
        node_config={"partition-id": 0, "num-partitions": report.nodes},
        state=RecordDict(),
        run_config=dict(values),
    )
    client = app.client_fn(context)
    if not isinstance(client, SplitClient):
        report.facts["client"] = type(client).__name__
        return
    count = sum(p.numel() for p in client.segment.parameters())
    report.facts["client 0"] = (
        f"{client.batches.examples} training examples in batches of {client.batches.size}"
    )
    with torch.no_grad():
        # BatchNorm may need two to train on; of a single example a batch is drawn twice, too.
        few = np.arange(min(2, client.batches.size)) % client.batches.examples
        smashed = client.segment(fetch(client.batches.data, few)[0].to(client.device))
    if smashed.dim() != 3:
        report.problems.append(
            f"the lower segment returns smashed data of shape {tuple(smashed.shape)}; needed is "
            "(batch, patches, width)"
        )
        return
    report.facts["lower segment"] = (
        f"{count:,} parameters; {smashed.shape[1]} patches x {smashed.shape[2]} for each example"
    )


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """Make the modules of a folder importable, and unload them afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
