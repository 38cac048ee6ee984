"""A Flower App that times single steps of the U shape; `benchmarks.ushape` runs it."""
