"""What watches a run: metrics today; recorders and ledgers are observers too."""

from flwr_splitmix.observers.metrics import Metrics, progress_line
from flwr_splitmix.observers.observer import Observer
from flwr_splitmix.observers.privacy_ledger import PrivacyLedger

__all__ = ["Metrics", "Observer", "PrivacyLedger", "progress_line"]
