"""What watches a run: metrics today; recorders and ledgers are observers too."""

from flwr_splitmix.observers.ledger import PrivacyLedger
from flwr_splitmix.observers.metrics import Metrics, progress_line
from flwr_splitmix.observers.observer import Observer

__all__ = ["Metrics", "Observer", "PrivacyLedger", "progress_line"]
