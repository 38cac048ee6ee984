"""Benchmarks: programs that measure time, memory and bytes, print a table and write JSON."""

import flwr_splitmix  # noqa: F401  # sets how threads wait, before a benchmark imports torch
