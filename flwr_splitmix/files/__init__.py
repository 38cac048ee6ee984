"""Files: where they are, how they are read and written; without torch."""
