"""A run's model as a folder of its own, and predictions from such a folder."""
