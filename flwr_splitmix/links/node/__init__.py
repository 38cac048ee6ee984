"""A SuperNode's part: its rounds, and what it keeps of its client between them."""
