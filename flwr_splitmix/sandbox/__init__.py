"""SuperLinks and SuperNodes of one's own, for demonstrations, benchmarks and tests."""
