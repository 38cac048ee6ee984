"""Runs on disk: configuration, metrics, checkpoints and summary. Importable without torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr_splitmix.runs.errors import RunError
    from flwr_splitmix.runs.metrics_file import Row
    from flwr_splitmix.runs.run import Run

__all__ = ["Row", "Run", "RunError"]


def __getattr__(name: str) -> Any:
    """Import names lazily: a node keeps checkpoints, but need not have pyarrow."""
    if name in __all__:
        from flwr_splitmix.runs import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all names, including those not yet imported."""
    return sorted({*globals(), *__all__})
