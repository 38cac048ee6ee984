"""The server side of a run: the loop of rounds, and the components of a strategy."""
