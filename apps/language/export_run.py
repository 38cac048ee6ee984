"""The command `python apps/language/export_run.py RUN FOLDER`: a run's model for transformers."""

import sys
from pathlib import Path

from flwr_splitmix.apps.language.export import main

if __name__ == "__main__":
    sys.exit(main(Path(__file__).with_name("pyproject.toml")))
