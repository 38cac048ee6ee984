"""A Flower App that times steps over shaped lines; `benchmarks.edge` runs it."""
