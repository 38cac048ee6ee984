"""Export of a run's model to a folder, and predictions from such a folder."""
