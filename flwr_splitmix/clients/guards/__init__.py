"""Guards of a client's data: ledgers, limits, and errors that tell a server nothing."""
