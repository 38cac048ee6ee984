"""What a run leaves on disk: configuration, metrics, checkpoints, summary. Needs no torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr_splitmix.runs.errors import RunError
    from flwr_splitmix.runs.metrics_file import Row
    from flwr_splitmix.runs.run import Run

__all__ = ["Row", "Run", "RunError"]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: a node keeps checkpoints, and need not have pyarrow."""
    if name in __all__:
        from flwr_splitmix.runs import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all names, those that are not imported yet among them."""
    return sorted({*globals(), *__all__})
