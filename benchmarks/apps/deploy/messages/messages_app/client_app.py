"""The ClientApp: a forward and a backward, each the answer to a message."""

from __future__ import annotations

from flwr.clientapp import ClientApp

from benchmarks.apps.steps.step_app.messages import add_handlers

app = ClientApp()
add_handlers(app)
