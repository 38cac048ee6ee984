"""A Flower App with many virtual clients of which few take part; `benchmarks.scale` runs it."""
