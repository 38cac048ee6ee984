"""The command `python apps/language/export_run.py RUN FOLDER`: `splitmix export` by now."""

import sys
from pathlib import Path

from flwr_splitmix.cli import app

if __name__ == "__main__":
    app(["export", "--app", str(Path(__file__).parent), *sys.argv[1:]])
