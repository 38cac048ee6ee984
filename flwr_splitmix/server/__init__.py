"""The server's side of a run: the loop of rounds, and all that a strategy is made of."""
