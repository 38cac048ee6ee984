"""The SuperNode's side: rounds, safeguards, and the client's state between rounds."""
