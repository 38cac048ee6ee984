"""How fast, how large, how many: programs that print a table and write JSON."""

import flwr_splitmix  # noqa: F401  # says how threads wait, before a benchmark imports torch
