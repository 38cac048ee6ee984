"""Check of a user's own app: its components; `own_client` looks at the client that it makes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from flwr_splitmix.apps.checking.own_client import look_at_client
from flwr_splitmix.apps.checking.parts import Checks
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.configuration.project import Project
from flwr_splitmix.client_app import SplitClientApp
from flwr_splitmix.errors import FAULTS
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import STRATEGIES
from flwr_splitmix.strategies.option_trial import trial_strategy
from flwr_splitmix.words import cause


def check(checks: Checks) -> None:
    """Import the app's components, make its first client, and report the findings.

    There is no table of cuts, as the server's part of such an app is unknown until it runs.
    """
    report, app = checks.report, _OwnApp(checks.project)
    _remark_types(checks)
    with _on_path(checks.project.folder):
        if not checks.run(app.load):
            return
        checks.run(app.check_client, checks)
    if report.nodes_known and report.nodes == 1:
        _remark_one_client(app.server_module, report)


class _OwnApp:
    """A user's own app, whose components `load` imports."""

    server_module: ModuleType
    client_app: SplitClientApp

    def __init__(self, project: Project) -> None:
        self._places = project.components

    def load(self) -> None:
        """Import both components.

        Raises
        ------
        ConfigError
            If one cannot be imported, or has another type.
        """
        self.server_module, _ = self._component("serverapp", ServerApp)
        _, client_app = self._component("clientapp", ClientApp)
        if not isinstance(client_app, SplitClientApp):
            raise ConfigError(
                f"clientapp {self._places['clientapp']!r} is not a SplitClientApp, which the "
                "strategies of flwr-splitmix need; make it SplitClientApp(client_fn), or a "
                "subclass that hands the messages of other strategies on"
            )
        self.client_app = client_app

    def _component(self, kind: str, expected: type) -> tuple[ModuleType, Any]:
        """Return the module of a component, and the component."""
        place = self._places[kind]
        module, _, attribute = place.partition(":")
        try:
            imported = importlib.import_module(module)
            component = getattr(imported, attribute)
        except FAULTS as error:  # a user's module may raise anything on import
            raise ConfigError(f"{kind} {place!r} cannot be imported: {cause(error, 300)}") from None
        if not isinstance(component, expected):
            raise ConfigError(f"{kind} {place!r} is not a {expected.__name__}")
        return imported, component

    def check_client(self, checks: Checks) -> None:
        """Make a client and report the findings; raise ConfigError if that fails."""
        try:
            look_at_client(self.client_app, checks.values, checks.report)
        except FAULTS as error:  # a user's subclass of a client may lack anything
            raise ConfigError(
                f"client_fn's client cannot be checked: {cause(error, 300)}"
            ) from None


def _remark_types(checks: Checks) -> None:
    """Warn of values of another type than their default in pyproject.toml.

    Flower itself only checks that there is such a key. An integer may stand for a float.
    """
    for key, default in checks.project.config.items():
        value = checks.values.get(key, default)
        whole = isinstance(default, float) and type(value) is int
        if type(value) is not type(default) and not whole:
            checks.report.remarks.append(
                f"{key} is {value!r:.80}, of type {type(value).__name__}, and its default in "
                f"pyproject.toml is {default!r:.80}, of type {type(default).__name__}; Flower does "
                "not check types: give it one of the default's"
            )


def _remark_one_client(module: ModuleType, report: Report) -> None:
    """Warn if the module of the ServerApp has a strategy that cannot train a single client.

    Which strategy a run uses, and how it is made, is unknown until it runs.
    """
    class_names = [kind.__name__ for kind in vars(module).values() if isinstance(kind, type)]
    for name in sorted(set(class_names).intersection(STRATEGIES)):
        noise = {"noise": GaussianNoise(sigma_s=1.0, sigma_y=1.0)}
        needed = STRATEGIES[name].needs_noise
        least = trial_strategy(name, noise if needed else {}).min_nodes
        if least > 1:
            report.remarks.append(
                f"{name} needs at least {least} clients in a round, and the federation has 1 "
                f"SuperNode: a run with {name} would end at once; {least} are enough (--nodes "
                f"{least})"
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
