"""Guards of a client's data: ledgers, limits, and errors that reveal nothing to a server."""
