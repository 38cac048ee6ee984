"""The ServerApp; what it does is `flwr_splitmix.apps.language.server`."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flwr_splitmix.apps.language.server import train

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train one run, or continue one."""
    train(grid, context)
