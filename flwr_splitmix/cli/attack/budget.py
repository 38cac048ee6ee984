"""The budget of an attack in a terminal: its progress is shown, and Ctrl-C stops it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr_splitmix.attacks.fitted import Budget, Scale


@contextmanager
def budgets(scale: Scale, seconds: float | None, device: str) -> Iterator[Callable[[], Budget]]:
    """Yield what makes an attack's budget: it shows the progress, and Ctrl-C stops the attack."""
    from flwr_splitmix.attacks.fitted import Budget
    from flwr_splitmix.device import pick_device

    with ExitStack() as shown:

        def budget() -> Budget:  # its time begins now
            return Budget(
                scale,
                seconds=seconds,
                device=pick_device(device),
                progress=shown.enter_context(_progress()),
                stop=shown.enter_context(_stoppable()),
            )

        yield budget


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """Let the first Ctrl-C stop the attack, and the second end the command."""
    stop = threading.Event()

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress() -> Iterator[Any]:
    """Show a progress bar on standard error, and yield the function that updates it."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(task: str, completed: int, of: int) -> None:
            if task not in tasks:
                tasks[task] = bar.add_task(task or "attack", total=of)
            bar.update(tasks[task], completed=completed, total=of)

        yield show
