"""Private SuperLinks and SuperNodes for demonstrations, benchmarks and tests."""
