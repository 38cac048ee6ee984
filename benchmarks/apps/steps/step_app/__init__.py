"""A Flower App that times single steps; `benchmarks.step_time` runs it."""
